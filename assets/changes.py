"""The changes and the state of a table: the topic -> the lake's changes -> the merged state.

This module has the assets of one table with their checks and metadata. `writetime.landing.landing` lands the changes,
and `writetime.lake` merges them.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from writetime.changes.model import change_schema
from writetime.core.counts import pluralize
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
from writetime_dagster.assets.builders import table_asset
from writetime_dagster.assets.checks import from_faults
from writetime_dagster.assets.failures import retried
from writetime_dagster.assets.followed import shared_watermarks
from writetime_dagster.assets.naming import arrow_columns, key_of, pool_of
from writetime_dagster.assets.staging import StagedFiles, Suite
from writetime_dagster.resources import KafkaResource, LakeResource, SparkResource

_NO_TOPIC = "no agent has published it yet: start `writetime agent`, and check that the table has cdc = true"


def build_changes_asset(table: FollowedTable) -> dg.AssetsDefinition:
    """Return the captured changes of a table in the lake."""
    name = "all_messages_landed"

    @table_asset(
        table,
        "changes",
        after=["topic"],
        kinds={"spark", "deltalake"},
        files=("docs/capture.md", "docs/lake.md"),
        columns=_columns(table),
        blocking={
            name: "The files of each batch have one change for each offset that landing read: no gap, no duplicate. "
            "Landing compares them before it commits; a batch that fails is not committed."
        },
        description=f"The captured changes of {table.name}, from Kafka in the lake, each message once. A run lands "
        "the changes that the topic holds when it starts. After a failure, run it again.",
    )
    def land(
        spark: SparkResource, lake: LakeResource, kafka: KafkaResource
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        settings = kafka.settings_with(lake)
        if not is_published(settings, table.name):
            yield dg.AssetCheckResult(check_name=name, passed=True, metadata={"fix": _NO_TOPIC})
            yield dg.MaterializeResult(metadata={"changes_landed": 0})
            return
        began = time.monotonic()
        landing = Landing(settings, table.name)
        try:
            with reported(settings, landing):
                added = landing.drain(spark.run)
        except Incomplete as e:
            yield dg.AssetCheckResult(check_name=name, passed=False, description=str(e))
            raise
        seconds = time.monotonic() - began
        changes = open_table(settings, table.name).changes.load()
        numbers = {"changes_landed": added, "offsets": landing.offsets_landed}
        yield dg.AssetCheckResult(check_name=name, passed=True, metadata=numbers)
        yield dg.MaterializeResult(
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


def build_lag_checks(table: FollowedTable) -> dg.AssetChecksDefinition:
    """Return the checks of how far the lake is behind. They also run while nothing is landed."""
    described = {
        "lag_is_bounded": "At most `max_lag` changes wait in the topic, as the table's entry sets it.",
        "lake_is_fresh": "All changes that the nodes, or the table's CDC log, had `capture.stale_seconds` ago are in "
        "the lake. If not: nothing lands, an agent is behind or down, has a segment set aside or a gap, or its node is "
        "gone and was not retired.",
        "landing_goes_on": "Nothing stops the table's changes on their way into the lake: landing has not set the "
        "table aside, and for `capture.stale_seconds` no message has waited, and the watermark of each source has "
        "advanced.",
    }
    key = key_of(table.name, "changes")

    @dg.multi_asset_check(
        name=pool_of(table.name, "lag_and_freshness"),
        specs=[dg.AssetCheckSpec(name, asset=key, description=text) for name, text in described.items()],
    )
    @retried
    def look(lake: LakeResource, kafka: KafkaResource) -> Iterator[dg.AssetCheckResult]:
        settings = kafka.settings_with(lake)
        stops = stopped(settings, LakeTable(table_storage(settings, table.name)), shared_watermarks)
        fix = {} if is_published(settings, table.name) else {"fix": _NO_TOPIC}
        waiting = 0 if fix else not_landed(settings, table.name)
        until = 0
        if is_in_lake(settings, table.name):
            until = captured_until(open_table(settings, table.name).changes.load())
        yield from_faults(
            [f"{pluralize(waiting, 'change', ',')} not landed"] if waiting > table.entry.max_lag else [],
            {"changes_not_landed": waiting, "max_lag": table.entry.max_lag},
            check_name="lag_is_bounded",
            severity=dg.AssetCheckSeverity.WARN,
        )
        yield _is_fresh(until, settings.capture.stale_seconds, fix)
        found = {"stopped": dg.MetadataValue.json(stops)} if stops else {}
        yield from_faults(stops, found, check_name="landing_goes_on")

    return look


def _is_fresh(until: int, stale_seconds: float, fix: Mapping[str, str]) -> dg.AssetCheckResult:
    """Return the check of the time (microseconds) up to which all writes are captured; 0 if it is not known."""
    freshness = _freshness(until)
    age = f"captured until {freshness['age_seconds']} s ago" if freshness else "the lake has no watermark"
    return from_faults(
        [fix.get("fix", age)] if time.time() - until / 1e6 > stale_seconds else [],
        {**freshness, **fix},
        check_name="lake_is_fresh",
        severity=dg.AssetCheckSeverity.WARN,
    )


def _freshness(until: int) -> dict[str, Any]:
    """Return the time (microseconds) up to which all writes are captured, and its age. Return nothing if that time is
    not known.
    """
    if not until:
        return {}
    return {
        "captured_until": dg.MetadataValue.timestamp(until / 1e6),
        "age_seconds": round(time.time() - until / 1e6, 1),
    }


def build_state_asset(table: FollowedTable) -> dg.AssetsDefinition:
    """Return the merged state of a table."""

    @table_asset(
        table,
        "state",
        after=["backfill", *(["changes"] if table.entry.capture else [])],
        kinds={"spark", "deltalake"},
        files=("docs/lake.md", "docs/semantics.md"),
        columns=_columns(table),
        blocking={"levels_are_a_state": "Great Expectations on the new levels. Levels that fail are not committed."},
        checks={
            "write_times_are_past": "A write time in the future wins over every deletion until then. A client's clock "
            "may be wrong."
        },
        description=f"The changes of {table.name}, merged cell by cell, as levels: each run adds one for the new "
        "changes, and folds levels when there are too many. The cost grows with the new changes, not with the table.",
    )
    def merge(spark: SparkResource, lake: LakeResource) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        in_lake = open_table(lake.settings, table.name)
        staged = StagedFiles(
            {
                "levels_are_a_state": Suite(expectations.of_levels),
                "write_times_are_past": Suite(expectations.of_write_times, dg.AssetCheckSeverity.WARN),
            },
            lambda levels: expectations.levels(spark.spark_session, in_lake, levels),
            f"{table.name}: the merged levels are not as expected; they are not committed",
        )
        began = time.monotonic()
        folded, compacted = yield from staged.during(
            lambda: (state.fold(in_lake, spark.run, staged), state.compact(in_lake, spark.run, staged))
        )
        now = in_lake.state.load()
        horizon = horizon_of(now)
        dropped = {"tombstones_dropped_until": dg.MetadataValue.timestamp(horizon / 1e6)} if horizon else {}
        yield dg.MaterializeResult(
            metadata={
                "files_folded": folded,
                "buckets_compacted": compacted,
                "levels": len(now.files),
                "rows": sum(file.rows for file in now.files),
                "bytes": sum(file.size for file in now.files),
                "fold_seconds": round(time.monotonic() - began, 2),
                **dropped,
            }
        )

    return merge


def _columns(table: FollowedTable) -> dict[str, Any]:
    return {} if table.schema is None else arrow_columns(change_schema(table.schema))
