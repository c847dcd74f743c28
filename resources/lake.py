"""The lake for assets: Delta tables below one path."""

from pathlib import Path
from typing import Any

import deltalake
from pydantic import Field
from pyspark.sql import DataFrame

from writetime.core.private_folders import restrict_home
from writetime.delta.bucketed_table import is_delta_table
from writetime.delta.storage import lake_storage
from writetime.delta.store_clock import require_right_clock
from writetime_dagster.resources.base import WritetimeResource


class LakeResource(WritetimeResource):
    """The lake. A table is named by the path of its folder, such as `ingest/dead_letters`."""

    section = "lake"

    folder: str | None = Field(default=None, description="A folder or URL. Default: the setting `lake.path`.")

    def overrides(self) -> dict[str, Any]:
        """Return the value that the field names."""
        return {"path": self.folder}

    def path(self, table: str) -> str:
        """Return the address of a table; a relative lake path is relative to the working folder."""
        storage = lake_storage(self.settings)
        if storage.is_local:
            restrict_home(Path(storage.root))
        return storage.folder(table).address

    def find(self, table: str) -> deltalake.DeltaTable | None:
        """Return the table, by its log alone and without Spark; None if it has not been written."""
        storage = lake_storage(self.settings).folder(table)
        if not is_delta_table(storage):
            return None
        return deltalake.DeltaTable(storage.address, storage_options=dict(storage.options))

    def append(self, frame: DataFrame, table: str, app_id: str, number: int) -> None:
        """Append rows in one commit, which records a number of an application. The first append creates the table.
        Nothing happens if a commit has recorded this number of the application, or a larger one.
        """
        writer = frame.write.format("delta").mode("append").option("txnAppId", app_id).option("txnVersion", number)
        writer.save(self.path(table))

    def replace_where(self, frame: DataFrame, table: str, condition: str) -> None:
        """Replace the rows that an SQL condition selects, in one commit. The condition must select all given rows."""
        frame.write.format("delta").mode("overwrite").option("replaceWhere", condition).save(self.path(table))

    def replace_partitions(self, frame: DataFrame, table: str, by: list[str]) -> None:
        """Replace the partitions of the rows, in one commit. The first call creates the table."""
        writer = frame.write.format("delta").mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*by).save(self.path(table))

    def clean_up(self, table: str) -> dict[str, int]:
        """Merge the small files of a table, and delete files that no version of the last `lake.vacuum_hours` names.
        Return the number of both; nothing if the table does not exist yet.

        Raises:
            WritetimeError: this machine's clock is far ahead; nothing is done.
        """
        storage = lake_storage(self.settings).folder(table)
        if (opened := self.find(table)) is None:
            return {}
        require_right_clock(storage)
        merged = opened.optimize.compact()["numFilesRemoved"]
        hours = self.settings.lake.vacuum_hours
        # It may have been set meanwhile.
        require_right_clock(storage)
        gone = opened.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        return {"files_merged": merged, "files_deleted": len(gone)}
