"""The lake for assets: Delta tables below one path."""

import deltalake
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from writetime.lake.lake_storage import lake_storage
from writetime.lake.store_clock import require_right_clock
from writetime_dagster.resources.base import WritetimeResource


class LakeResource(WritetimeResource):
    """The lake of the settings. A table is named by the path of its folder, such as `ingest/dead_letters`."""

    def path(self, table: str) -> str:
        """Return the address of a table; a relative lake path is relative to the working folder."""
        return lake_storage(self.settings).folder(table).address

    def exists(self, spark: SparkSession, table: str) -> bool:
        """Return whether the table has been written."""
        return DeltaTable.isDeltaTable(spark, self.path(table))

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """Return the table's rows."""
        return spark.read.format("delta").load(self.path(table))

    def append(self, frame: DataFrame, table: str) -> None:
        """Append rows in one commit. The first append creates the table."""
        frame.write.format("delta").mode("append").save(self.path(table))

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
        options = dict(storage.options)
        if not deltalake.DeltaTable.is_deltatable(storage.address, options):
            return {}
        require_right_clock(storage)
        opened = deltalake.DeltaTable(storage.address, storage_options=options)
        merged = opened.optimize.compact()["numFilesRemoved"]
        hours = self.settings.lake.vacuum_hours
        # It may have been set meanwhile.
        require_right_clock(storage)
        gone = opened.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        return {"files_merged": merged, "files_deleted": len(gone)}
