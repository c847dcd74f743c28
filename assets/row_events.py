"""Row events of a table: the state -> events in the lake -> the topic `row_events.<keyspace>.<table>`.

This module has the assets of one table with their checks and metadata. `writetime.row_events` computes the events.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence

import dagster as dg
from pyspark.sql import DataFrame

from writetime.clients.kafka import end_offsets, has_topic, next_offsets
from writetime.core.counts import pluralize as counted
from writetime.delta.parquet import WrittenFile
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import open_table
from writetime.row_events.changed_rows import AFTER, BEFORE, EVENTS
from writetime.row_events.events import KINDS, event_schema
from writetime.row_events.publish import not_published, publish, published_since
from writetime.row_events.stream import extend
from writetime.wire.topic_names import row_events_topic
from writetime_dagster.assets import expectations
from writetime_dagster.assets.builders import table_asset
from writetime_dagster.assets.checks import from_faults
from writetime_dagster.assets.naming import arrow_columns
from writetime_dagster.assets.staging import StagedFiles, Suite
from writetime_dagster.resources import KafkaResource, LakeResource, SparkResource


def build_row_events_asset(table: FollowedTable) -> dg.AssetsDefinition:
    """Return the row events of a table in the lake."""
    columns = {} if table.schema is None else arrow_columns(event_schema(table.schema))

    @table_asset(
        table,
        "row_events",
        after=["state"],
        kinds={"spark", "deltalake"},
        files=["docs/row-events.md"],
        columns=columns,
        blocking={
            "events_are_of_their_kinds": "Great Expectations on the new batch, which is not committed if it fails. Its "
            "events, as Spark reads them, are as many as were computed. They create and delete as many rows as the "
            "state got and lost at the changed places. Ids and places occur once, and images are those of the kind.",
        },
        description=f"Each change of a row of {table.name} since the last run: CREATE, UPDATE or DELETE with the "
        "row before and after. One batch per run. After a failure, run it again. The cost grows with the new changes.",
    )
    def find(spark: SparkResource, lake: LakeResource) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        in_lake = open_table(lake.settings, table.name)
        counted: dict[str, int] = {}
        counts: Counter[str] = Counter()
        new: list[WrittenFile] = []

        def frame(files: Sequence[WrittenFile]) -> DataFrame:
            new.extend(files)
            return expectations.events(spark.spark_session, in_lake, files)

        def count(events: DataFrame) -> None:
            counted.update({row["kind"]: row["count"] for row in events.groupBy("kind").count().collect()})

        staged = StagedFiles(
            {"events_are_of_their_kinds": Suite(lambda: expectations.of_events(counts))},
            frame,
            f"{table.name}: the new row events are not as expected; they are not committed",
            count=count,
            keys=["event_id"],
            lacking=lambda: counts[EVENTS] > 0 or counts[AFTER] != counts[BEFORE],
        )
        began = time.monotonic()
        added = yield from staged.during(lambda: extend(in_lake, run=spark.run, staged=staged, counts=counts))
        seconds = time.monotonic() - began
        yield dg.MaterializeResult(
            metadata={
                "events": added,
                **{f"events_{kind.lower()}": counted.get(kind, 0) for kind in KINDS},
                "bytes": sum(file.size for file in new),
                "files": len(new),
                "extend_seconds": round(seconds, 2),
                "path": dg.MetadataValue.path(in_lake.row_events.storage.address),
            }
        )

    return find


def build_row_events_topic_asset(table: FollowedTable) -> dg.AssetsDefinition:
    """Return the row events of a table in Kafka."""

    @table_asset(
        table,
        "row_topic",
        after=["row_events"],
        kinds={"kafka"},
        files=["docs/row-events.md"],
        checks={
            "all_events_are_published": "A reader of the topic receives all new events that were published, and none "
            "waits in the lake.",
        },
        description=f"The row events of {table.name} in Kafka's `{row_events_topic(table.name)}`: each once, for "
        "consumers that read committed messages.",
    )
    def send(lake: LakeResource, kafka: KafkaResource) -> dg.MaterializeResult:
        settings, name = kafka.settings_with(lake), row_events_topic(table.name)
        in_lake = open_table(settings, table.name)
        # The events of an earlier run may not be readable yet, and are not of this run.
        before = next_offsets(settings, name) if has_topic(settings, name) else {}
        began = time.monotonic()
        published = publish(settings, in_lake)
        seconds = time.monotonic() - began
        found = published_since(settings, table.name, before, published) if published else 0
        waiting = not_published(in_lake)
        fault = f"{counted(published, 'event', ',')} published, {found:,} in the topic, {waiting:,} waiting"
        return dg.MaterializeResult(
            metadata={
                "events_published": published,
                "end_offset": sum(end_offsets(settings, name).values()),
                "publish_seconds": round(seconds, 2),
                "topic": name,
            },
            check_results=[
                from_faults(
                    [] if found == published and not waiting else [fault],
                    {"events_published": published, "events_in_topic": found, "events_waiting": waiting},
                )
            ],
        )

    return send
