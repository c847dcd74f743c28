"""The job `restore`: it writes a table of the lake as SSTables, and imports them if the database is on this machine."""

from typing import Literal

import dagster as dg
from pydantic import Field

from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.instants import parse_instant
from writetime.lake.table import open_table
from writetime.restore.into import restore_into
from writetime.restore.to_folder import restore
from writetime.storage.locations import without_secrets
from writetime_dagster.assets.automation import step_job
from writetime_dagster.assets.failures import retried
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource


class RestoreConfig(dg.Config):
    """The table, the folder, the instant, and the table to import into."""

    table: str = Field(description="The table of the lake, as keyspace.table.")
    to: str = Field(description="A new or empty folder, or the URL of one, that all processes of Spark can write to.")
    as_of: str | None = Field(
        default=None,
        description="A time in ISO 8601, or microseconds since 1970: only the writes up to it count. Default: all.",
    )
    into: str | None = Field(
        default=None,
        description="A table of the database, as keyspace.table, to import into. It is created if it is missing. Nodes "
        "of this machine import at once, and others by `writetime import`. Then the rows are compared with the lake.",
    )
    merge: bool = Field(
        default=False, description="The table to import into may have rows; the newer of two writes to a cell counts."
    )
    version: Literal["nb", "oa", "me"] = Field(
        default="nb",
        description="nb: Cassandra 4.0 to 5.0; oa: Cassandra 5.0, with expiries after 2038; me: ScyllaDB. With `into`, "
        "the database decides.",
    )


def restore_job() -> dg.JobDefinition:
    """Return the job. It has no schedule: each run needs its configuration."""

    @dg.op(description="Writes SSTables, `schema.cql`, and `restore.json`, which lists them; and imports them.")
    @retried
    def write_sstables(
        context: dg.OpExecutionContext,
        config: RestoreConfig,
        spark: SparkResource,
        lake: LakeResource,
        database: DatabaseResource,
    ) -> None:
        instant = None if config.as_of is None else parse_instant(config.as_of)
        table = open_table(lake.settings, config.table)
        folder = without_secrets(config.to)
        metadata: dict[str, dg.RawMetadataValue] = {"folder": dg.MetadataValue.path(folder)}
        if config.into is None:
            manifest = restore(table, config.to, instant, version=config.version, run=spark.run)
        elif config.version != "nb":
            raise WritetimeError(f"version {config.version} is for SSTables without `into`, where the database decides")
        else:
            settings = database.settings_with(lake)
            report = restore_into(settings, table, config.to, config.into, instant, merge=config.merge, run=spark.run)
            manifest, found = report.manifest, report.comparison
            if found is None:
                raise WritetimeError(
                    f"{', '.join(report.remaining)} have not imported their SSTables: run `writetime import {folder}` "
                    "on each of these nodes, and then this job again"
                )
            if not found.proven:
                raise WritetimeError(
                    f"{config.into}: {pluralize(found.differing, 'row')} of {found.rows} differ from the lake, such as "
                    f"{found.differences[0]}"
                )
            metadata["rows_compared"] = found.rows
        context.add_output_metadata(metadata | {"sstables": len(manifest.sstables), "changes": manifest.changes})

    return step_job("restore", "Write a table of the lake as SSTables, as of an instant.", [write_sstables])
