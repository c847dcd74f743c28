"""The job `erase`, which erases partitions and rows that the database has deleted."""

from pathlib import Path

import dagster as dg
from pydantic import Field

from writetime.erasure.certificate import erase
from writetime.erasure.keys import ranges_of
from writetime.lake.table import open_table
from writetime_dagster.assets.automation import step_job
from writetime_dagster.assets.failures import retried
from writetime_dagster.resources import KafkaResource, LakeResource


class EraseConfig(dg.Config):
    """The table, and the file of the keys."""

    table: str = Field(description="The table of the lake, as keyspace.table.")
    keys: str = Field(
        description="A file on the machine of the run with one key per line, as `writetime erase --keys` takes it. "
        "Delete it later. Dagster keeps the configuration of a run, so this has no keys."
    )
    delete_records: bool = Field(
        default=False,
        description="Delete all messages in the table's topics that have landed, and all of its row events in Kafka.",
    )
    without_kafka: bool = Field(default=False, description="The table has no topics, because it was only backfilled.")


def erase_job() -> dg.JobDefinition:
    """Return the job. It has no schedule: each run needs its configuration."""

    @dg.op(description="Removes every byte of the partitions and rows from the lake, and records the certificate.")
    @retried
    def erase_keys(
        context: dg.OpExecutionContext, config: EraseConfig, lake: LakeResource, kafka: KafkaResource
    ) -> None:
        settings = kafka.settings_with(lake)
        table = open_table(settings, config.table)
        lines = Path(config.keys).read_text().splitlines()
        ranges = ranges_of([text for line in lines if (text := line.strip())], table.schema())
        done = erase(settings, table, ranges, kafka=not config.without_kafka, delete_records=config.delete_records)
        context.add_output_metadata({"certificate": dg.MetadataValue.json(done)})

    return step_job("erase", "Erase partitions and rows that the database has deleted.", [erase_keys])
