"""Row events: the state -> events in the lake -> the topic `rows.<keyspace>.<table>`.

What belongs here: the assets, their checks, their metadata. Not here: how events are found (`writetime.rows`).
"""

import time

from dagster import AssetCheckResult, AssetCheckSpec, AssetKey, MaterializeResult, MetadataValue, asset

from assets import expectations
from assets.checks import from_findings
from assets.lake import STATE, TableConfig
from resources import KafkaResource, LakeResource, SparkResource
from writetime import quality
from writetime.kafka import end_offsets
from writetime.lake.spark import in_spark
from writetime.lake.table import open_table
from writetime.rows.events import KINDS
from writetime.rows.publish import publish, topic_of
from writetime.rows.stream import batch_files, extend, position_of

EVENTS = AssetKey(["rows", "events"])
TOPIC = AssetKey(["rows", "topic"])


@asset(
    key=EVENTS,
    deps=[STATE],
    group_name="rows",
    kinds={"spark", "deltalake"},
    pool="rows_events",
    check_specs=[
        AssetCheckSpec(
            "events_are_of_their_kinds",
            asset=EVENTS,
            blocking=True,
            description="Great Expectations on the new batch: what fails is not published.",
        )
    ],
)
def row_events(config: TableConfig, spark: SparkResource, lake: LakeResource) -> MaterializeResult:
    """What became of each row of a table since the last run: CREATE, UPDATE and DELETE with the row before and after.

    One batch a run; a run that fails is simply run again. Its cost follows what is new and not the table.
    """
    session = spark.spark_session
    table = open_table(lake.settings, config.table)
    began = time.monotonic()
    added = extend(table, run=in_spark(session))
    seconds = time.monotonic() - began
    stream = table.rows.load()
    position = position_of(stream)
    sequence = position.batch.sequence if added and position is not None else 0
    files = [file for number, file in batch_files(stream) if number == sequence]
    check, counted = AssetCheckResult(check_name="events_are_of_their_kinds", passed=True), {}
    if added:
        frame = expectations.events(session, table, sequence).persist()
        findings = quality.validate(frame, "events", expectations.of_events(added))
        check = from_findings("events_are_of_their_kinds", findings)
        counted = {row["kind"]: row["count"] for row in frame.groupBy("kind").count().collect()}
        frame.unpersist()
    return MaterializeResult(
        metadata={
            "events": added,
            **{f"events_{kind.lower()}": counted.get(kind, 0) for kind in KINDS},
            "bytes": sum(file.size for file in files),
            "files": len(files),
            "extend_seconds": round(seconds, 2),
            "path": MetadataValue.path(table.rows.storage.address),
            "table": config.table,
        },
        check_results=[check],
    )


@asset(key=TOPIC, deps=[EVENTS], group_name="rows", kinds={"kafka"}, pool="rows_topic")
def row_topic(config: TableConfig, lake: LakeResource, kafka: KafkaResource) -> MaterializeResult:
    """The row events of a table in Kafka, as Avro: each once, for consumers that read what is committed."""
    table = open_table(lake.settings, config.table)
    topic = topic_of(config.table)
    began = time.monotonic()
    published = publish(kafka.settings, table)
    return MaterializeResult(
        metadata={
            "events_published": published,
            "end_offset": sum(end_offsets(kafka.settings, topic).values()),
            "publish_seconds": round(time.monotonic() - began, 2),
            "topic": topic,
            "table": config.table,
        }
    )
