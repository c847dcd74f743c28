"""The changes and the state of a table: the topic -> the lake's changes -> the merged state.

This module has the assets of one table with their checks and metadata. `writetime.landing.landing` lands the changes,
and `writetime.lake` merges them.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from dagster import (
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetsDefinition,
    MaterializeResult,
    MetadataValue,
    asset,
    multi_asset_check,
)

from writetime.changes.model import change_schema
from writetime.core.counts import pluralize
from writetime.delta.versions import TableVersion
from writetime.lake import state
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.horizon import captured_until, horizon_of
from writetime.lake.table import LakeTable, is_in_lake, open_table, table_storage
from writetime.landing.following import reported
from writetime.landing.landed_offsets import not_landed
from writetime.landing.landing import Incomplete, Landing
from writetime.landing.reports import stopped
from writetime.landing.topics import is_published
from writetime_dagster.assets import expectations
from writetime_dagster.assets.failures import retry_if_transient
from writetime_dagster.assets.followed import shared_watermarks
from writetime_dagster.assets.naming import arrow_columns, documents, key_of, pool_of
from writetime_dagster.assets.staging import StagedFiles, Suite
from writetime_dagster.resources import KafkaResource, LakeResource, SparkResource

_NO_TOPIC = "no agent has published it yet: start `writetime agent`, and check that the table has cdc = true"


def build_changes_asset(table: FollowedTable) -> AssetsDefinition:
    """Return the captured changes of a table in the lake."""
    key = key_of(table.name, "changes")

    @asset(
        key=key,
        deps=[key_of(table.name, "topic")],
        group_name="changes",
        kinds={"spark", "deltalake"},
        pool=pool_of(table.name, "changes"),
        metadata=_columns(table) | documents("docs/capture.md", "docs/lake.md"),
        check_specs=[
            AssetCheckSpec(
                "all_messages_landed",
                asset=key,
                blocking=True,
                description="The files of each batch have one change for each offset that landing read: no gap, no "
                "duplicate. Landing compares them before it commits; a batch that fails is not committed.",
            ),
        ],
        description=f"The captured changes of {table.name}, from Kafka in the lake, each message once. A run lands "
        "the changes that the topic holds when it starts. After a failure, run it again.",
    )
    def land(
        spark: SparkResource, lake: LakeResource, kafka: KafkaResource
    ) -> Iterator[AssetCheckResult | MaterializeResult]:
        with retry_if_transient():
            settings, name = kafka.settings_with(lake), "all_messages_landed"
            if not is_published(settings, table.name):
                yield AssetCheckResult(check_name=name, passed=True, metadata={"fix": _NO_TOPIC})
                yield MaterializeResult(metadata={"changes_landed": 0})
                return
            began = time.monotonic()
            landing = Landing(settings, table.name)
            try:
                with reported(settings, landing):
                    added = landing.drain(spark.run)
            except Incomplete as e:
                yield AssetCheckResult(check_name=name, passed=False, description=str(e))
                raise
            seconds = time.monotonic() - began
            changes = open_table(settings, table.name).changes.load()
            numbers = {"changes_landed": added, "offsets": landing.offsets_landed}
            yield AssetCheckResult(check_name=name, passed=True, metadata=numbers)
            yield MaterializeResult(
                metadata={
                    "changes_landed": added,
                    "changes_not_landed": not_landed(settings, table.name),
                    "changes_per_second": round(added / seconds, 1),
                    "changes": sum(file.rows for file in changes.files),
                    "bytes": sum(file.size for file in changes.files),
                    "files": len(changes.files),
                    "landing_seconds": round(seconds, 2),
                    **_freshness(captured_until(changes)),
                }
            )

    return land


def build_lag_checks(table: FollowedTable) -> AssetChecksDefinition:
    """Return the checks of how far the lake is behind. They also run while nothing is landed."""
    key = key_of(table.name, "changes")

    @multi_asset_check(
        name=pool_of(table.name, "lag_and_freshness"),
        specs=[
            AssetCheckSpec(
                "lag_is_bounded",
                asset=key,
                description="At most `max_lag` changes wait in the topic, as the table's entry sets it.",
            ),
            AssetCheckSpec(
                "lake_is_fresh",
                asset=key,
                description="All changes that the nodes, or the table's CDC log, had `capture.stale_seconds` ago are "
                "in the lake. If not: nothing lands, an agent is behind or down, has a segment set aside or a gap, or "
                "its node is gone and was not retired.",
            ),
            AssetCheckSpec(
                "landing_goes_on",
                asset=key,
                description="Nothing stops the table's changes on their way into the lake: landing has not set the "
                "table aside, and for `capture.stale_seconds` no message has waited, and the watermark of each source "
                "has advanced.",
            ),
        ],
    )
    def look(lake: LakeResource, kafka: KafkaResource) -> Iterator[AssetCheckResult]:
        with retry_if_transient():
            settings = kafka.settings_with(lake)
            reasons = stopped(settings, LakeTable(table_storage(settings, table.name)), shared_watermarks)
            fix = {} if is_published(settings, table.name) else {"fix": _NO_TOPIC}
            waiting = 0 if fix else not_landed(settings, table.name)
            until = 0
            if is_in_lake(settings, table.name):
                until = captured_until(open_table(settings, table.name).changes.load())
            bounded = waiting <= table.entry.max_lag
            yield AssetCheckResult(
                check_name="lag_is_bounded",
                passed=bounded,
                severity=AssetCheckSeverity.WARN,
                description=None if bounded else f"{pluralize(waiting, 'change', ',')} not landed",
                metadata={"changes_not_landed": waiting, "max_lag": table.entry.max_lag},
            )
            yield _is_fresh(until, settings.capture.stale_seconds, fix)
            yield AssetCheckResult(
                check_name="landing_goes_on",
                passed=not reasons,
                description="; ".join(reasons) or None,
                metadata={"stopped": MetadataValue.json(reasons)} if reasons else {},
            )

    return look


def _is_fresh(until: int, stale_seconds: float, fix: Mapping[str, str]) -> AssetCheckResult:
    """Return the check of the time (microseconds) up to which all writes are captured; 0 if it is not known."""
    freshness, fresh = _freshness(until), time.time() - until / 1e6 <= stale_seconds
    age = f"captured until {freshness['age_seconds']} s ago" if freshness else "the lake has no watermark"
    return AssetCheckResult(
        check_name="lake_is_fresh",
        passed=fresh,
        severity=AssetCheckSeverity.WARN,
        description=None if fresh else fix.get("fix", age),
        metadata={**freshness, **fix},
    )


def _freshness(until: int) -> dict[str, Any]:
    """Return the time (microseconds) up to which all writes are captured, and its age. Return nothing if that time is
    not known.
    """
    if not until:
        return {}
    return {
        "captured_until": MetadataValue.timestamp(until / 1e6),
        "age_seconds": round(time.time() - until / 1e6, 1),
    }


def build_state_asset(table: FollowedTable) -> AssetsDefinition:
    """Return the merged state of a table."""
    key = key_of(table.name, "state")

    @asset(
        key=key,
        deps=[key_of(table.name, "backfill"), *([key_of(table.name, "changes")] if table.entry.capture else [])],
        group_name="changes",
        kinds={"spark", "deltalake"},
        pool=pool_of(table.name, "state"),
        metadata=_columns(table) | documents("docs/lake.md", "docs/semantics.md"),
        check_specs=[
            AssetCheckSpec(
                "levels_are_a_state",
                asset=key,
                blocking=True,
                description="Great Expectations on the new levels. Levels that fail are not committed.",
            ),
            AssetCheckSpec(
                "write_times_are_past",
                asset=key,
                description="A write time in the future wins over every deletion until then. A client's clock may be "
                "wrong.",
            ),
        ],
        description=f"The changes of {table.name}, merged cell by cell, as levels: each run adds one for the new "
        "changes, and folds levels when there are too many. The cost grows with the new changes, not with the table.",
    )
    def merge(spark: SparkResource, lake: LakeResource) -> Iterator[AssetCheckResult | MaterializeResult]:
        with retry_if_transient():
            in_lake = open_table(lake.settings, table.name)

            staged = StagedFiles(
                {
                    "levels_are_a_state": Suite(expectations.of_levels),
                    "write_times_are_past": Suite(expectations.of_write_times, AssetCheckSeverity.WARN),
                },
                lambda levels: expectations.levels(spark.spark_session, in_lake, levels),
                f"{table.name}: the merged levels are not as expected; they are not committed",
            )
            began = time.monotonic()
            folded, compacted = yield from staged.during(
                lambda: (state.fold(in_lake, spark.run, staged), state.compact(in_lake, spark.run, staged))
            )
            now = in_lake.state.load()
            yield MaterializeResult(
                metadata={
                    "files_folded": folded,
                    "buckets_compacted": compacted,
                    "levels": len(now.files),
                    "rows": sum(file.rows for file in now.files),
                    "bytes": sum(file.size for file in now.files),
                    "fold_seconds": round(time.monotonic() - began, 2),
                    **_dropped_until(now),
                }
            )

    return merge


def _dropped_until(now: TableVersion) -> dict[str, MetadataValue]:
    """Return the time until which tombstones were dropped. Return nothing if none was."""
    horizon = horizon_of(now)
    return {"tombstones_dropped_until": MetadataValue.timestamp(horizon / 1e6)} if horizon else {}


def _columns(table: FollowedTable) -> dict[str, Any]:
    return {} if table.schema is None else arrow_columns(change_schema(table.schema))
