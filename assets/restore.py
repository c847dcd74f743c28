"""The job `restore`: it writes a table of the lake as SSTables, which the database can import."""

from typing import Literal

import dagster as dg
from pydantic import Field

from writetime.core.instants import parse_instant
from writetime.lake.restore import restore
from writetime.lake.table import open_table
from writetime.storage.locations import without_secrets
from writetime_dagster.assets.automation import step_job
from writetime_dagster.assets.failures import retried
from writetime_dagster.resources import LakeResource, SparkResource


class RestoreConfig(dg.Config):
    """The table, the folder, and the instant."""

    table: str = Field(description="The table of the lake, as keyspace.table.")
    to: str = Field(description="A new or empty folder, or the URL of one, that all processes of Spark can write to.")
    as_of: str | None = Field(
        default=None,
        description="A time in ISO 8601, or microseconds since 1970: only the writes up to it count. Default: all.",
    )
    version: Literal["nb", "oa", "me"] = Field(
        default="nb",
        description="nb: Cassandra 4.0 to 5.0; oa: Cassandra 5.0, with expiries after 2038; me: ScyllaDB.",
    )


def restore_job() -> dg.JobDefinition:
    """Return the job. It has no schedule: each run needs its configuration."""

    @dg.op(description="Writes an SSTable per bucket of the table, `schema.cql`, and `restore.json`, which lists them.")
    @retried
    def write_sstables(
        context: dg.OpExecutionContext, config: RestoreConfig, spark: SparkResource, lake: LakeResource
    ) -> None:
        instant = None if config.as_of is None else parse_instant(config.as_of)
        table = open_table(lake.settings, config.table)
        sstables = restore(table, config.to, instant, version=config.version, run=spark.run)
        context.add_output_metadata(
            {
                "sstables": len(sstables),
                "changes": sum(sstable.changes for sstable in sstables),
                "folder": dg.MetadataValue.path(without_secrets(config.to)),
            }
        )

    return step_job("restore", "Write a table of the lake as SSTables, as of an instant.", [write_sstables])
