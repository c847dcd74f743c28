"""The changes and the state of a table: the topic -> the lake's changes -> the merged state.

What belongs here: the assets of one table, their checks, their metadata. Not here: how landing and merging work
(`writetime.capture.landing`, `writetime.lake`).
"""

import time
from collections.abc import Iterator, Sequence

from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetsDefinition,
    Failure,
    MaterializeResult,
    MetadataValue,
    asset,
)

from assets import expectations
from assets.checks import from_findings
from assets.failures import by_kind
from assets.naming import arrow_columns, documents, key_of, pool_of
from resources import KafkaResource, LakeResource, SparkResource
from writetime import quality
from writetime.capture.landing import Landing, not_landed
from writetime.changes import change_schema
from writetime.lake import state
from writetime.lake.horizon import captured_until, horizon_of
from writetime.lake.parquet import WrittenFile
from writetime.lake.spark import in_spark
from writetime.lake.table import open_table
from writetime.quality import Finding
from writetime.tables import FollowedTable


def landed(table: FollowedTable) -> AssetsDefinition:
    """Return the captured changes of a table in the lake."""
    key = key_of(table.name, "changes")

    @asset(
        key=key,
        deps=[key_of(table.name, "topic")],
        group_name="changes",
        kinds={"spark", "deltalake"},
        owners=table.entry.owners,
        pool=pool_of(table.name, "changes"),
        metadata=_columns(table) | documents("docs/capture.md", "docs/lake.md"),
        check_specs=[
            AssetCheckSpec(
                "all_messages_landed",
                asset=key,
                blocking=True,
                description="As many changes came into the lake as there are offsets between where landing began and "
                "where it ended: no gap, nothing twice.",
            ),
            AssetCheckSpec(
                "lag_is_bounded",
                asset=key,
                description="After a run, no more than `max_lag` of the table's entry wait in the topic.",
            ),
            AssetCheckSpec(
                "lake_is_fresh",
                asset=key,
                description="All that every node, or the table's CDC log, had until `capture.stale_seconds` ago is in "
                "the lake. If not, an agent is behind or down, has a segment set aside or a gap, or its node is gone "
                "and was not retired.",
            ),
        ],
        description=f"The captured changes of {table.name}, from Kafka in the lake, each message once. A run lands "
        "what the topic holds when it starts; one that fails is simply run again.",
    )
    @by_kind()
    def land(spark: SparkResource, lake: LakeResource, kafka: KafkaResource) -> MaterializeResult:
        settings = kafka.settings
        began = time.monotonic()
        landing = Landing(settings, table.name)
        added = landing.drain(in_spark(spark.spark_session))
        seconds = time.monotonic() - began
        waiting = not_landed(settings, table.name)
        changes = open_table(lake.settings, table.name).changes.load()
        until = captured_until(changes) / 1_000_000
        age = time.time() - until
        freshness = {"captured_until": MetadataValue.timestamp(until), "age_seconds": round(age, 1)} if until else {}
        return MaterializeResult(
            metadata={
                "changes_landed": added,
                "changes_not_landed": waiting,
                "changes_per_second": round(added / seconds, 1),
                "changes": sum(file.rows for file in changes.files),
                "bytes": sum(file.size for file in changes.files),
                "files": len(changes.files),
                "landing_seconds": round(seconds, 2),
                **freshness,
            },
            check_results=[
                AssetCheckResult(
                    check_name="all_messages_landed",
                    passed=added == landing.offsets_landed,
                    metadata={"changes_landed": added, "offsets": landing.offsets_landed},
                ),
                AssetCheckResult(
                    check_name="lag_is_bounded",
                    passed=waiting <= table.entry.max_lag,
                    severity=AssetCheckSeverity.WARN,
                    metadata={"changes_not_landed": waiting, "max_lag": table.entry.max_lag},
                ),
                AssetCheckResult(
                    check_name="lake_is_fresh",
                    passed=bool(until) and age <= lake.settings.capture.stale_seconds,
                    severity=AssetCheckSeverity.WARN,
                    metadata=freshness,
                ),
            ],
        )

    return land


def merged(table: FollowedTable) -> AssetsDefinition:
    """Return the merged state of a table."""
    key = key_of(table.name, "state")

    @asset(
        key=key,
        deps=[key_of(table.name, "backfill"), *([key_of(table.name, "changes")] if table.entry.capture else [])],
        group_name="changes",
        kinds={"spark", "deltalake"},
        owners=table.entry.owners,
        pool=pool_of(table.name, "state"),
        metadata=_columns(table) | documents("docs/lake.md", "docs/semantics.md"),
        check_specs=[
            AssetCheckSpec(
                "levels_are_a_state",
                asset=key,
                blocking=True,
                description="Great Expectations on the new levels, before they are committed: what fails never is.",
            ),
            AssetCheckSpec(
                "write_times_are_past",
                asset=key,
                description="A write of the future outdoes every deletion until then: a client's clock may be wrong.",
            ),
        ],
        description=f"The changes of {table.name}, merged cell by cell, as levels: each run adds one for what is new, "
        "and folds those there are too many of. Its cost follows what is new and not the table.",
    )
    def merge(spark: SparkResource, lake: LakeResource) -> Iterator[AssetCheckResult | MaterializeResult]:
        session = spark.spark_session
        of_levels: list[Finding] = []
        of_times: list[Finding] = []
        with by_kind():
            run, in_lake = in_spark(session), open_table(lake.settings, table.name)

            def staged(levels: Sequence[WrittenFile]) -> None:
                if not levels:
                    return
                frame = expectations.levels(session, in_lake, levels).persist()
                of_levels.extend(quality.validate(frame, "levels", expectations.of_levels()))
                of_times.extend(quality.validate(frame, "write times", expectations.of_write_times()))
                frame.unpersist()
                if not all(finding.success for finding in of_levels):
                    raise Failure(f"{table.name}: the merged levels are no state; they are not committed")

            began = time.monotonic()
            try:
                folded = state.fold(in_lake, run, staged)
                compacted = state.compact(in_lake, run, staged)
            finally:
                yield from_findings("levels_are_a_state", of_levels)
                yield from_findings("write_times_are_past", of_times, AssetCheckSeverity.WARN)
            now = in_lake.state.load()
            horizon = horizon_of(now)
            dropped_until = {"tombstones_dropped_until": MetadataValue.timestamp(horizon / 1e6)} if horizon else {}
            yield MaterializeResult(
                metadata={
                    "files_folded": folded,
                    "buckets_compacted": compacted,
                    "levels": len(now.files),
                    "rows": sum(file.rows for file in now.files),
                    "bytes": sum(file.size for file in now.files),
                    "fold_seconds": round(time.monotonic() - began, 2),
                    **dropped_until,
                }
            )

    return merge


def _columns(table: FollowedTable) -> dict:
    return {} if table.schema is None else arrow_columns(change_schema(table.schema))
