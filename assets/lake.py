"""The lake: snapshots -> changes, by token range -> state -> view.

What belongs here: the assets, their checks, their metadata. Not here: how the tables work (`writetime.lake`).
"""

import json
import time
from collections.abc import Iterator, Sequence

import orjson
from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetSpec,
    Config,
    Failure,
    MaterializeResult,
    MetadataValue,
    StaticPartitionsDefinition,
    asset,
    asset_check,
)
from pydantic import Field
from pyspark.sql import functions as F

from assets import expectations
from assets.checks import from_findings
from resources import LakeResource, SparkResource
from writetime import quality
from writetime.database import DatabaseUnreachable
from writetime.errors import WritetimeError
from writetime.lake import state, views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.buckets import buckets_of_share
from writetime.lake.parquet import PARTITION, WrittenFile
from writetime.lake.spark import in_spark
from writetime.lake.table import create_table, open_table
from writetime.quality import Finding
from writetime.verify.verify import verify

SNAPSHOTS = AssetKey(["sources", "snapshots"])
CHANGES = AssetKey(["lake", "changes"])
LANDED = AssetKey(["capture", "landed_changes"])
STATE = AssetKey(["lake", "state"])
VIEW = AssetKey(["lake", "view"])

# Shares of the token's range; a table with fewer buckets has nothing to do in some of them.
TOKEN_RANGES = 16
# Rows that differ which a check shows; `writetime verify` prints all.
_SHOWN = 20
token_ranges = StaticPartitionsDefinition([f"tokens-{i:02d}-of-{TOKEN_RANGES}" for i in range(TOKEN_RANGES)])

snapshots = AssetSpec(
    SNAPSHOTS,
    group_name="sources",
    kinds={"cassandra", "scylladb"},
    description="Snapshots of tables on their nodes, or copies of them; `writetime snapshot` takes one.",
)


class TableConfig(Config):
    """Which table of the lake."""

    table: str = Field(description="As keyspace.table.")


class BackfillConfig(TableConfig):
    """Which snapshots to bring in."""

    paths: list[str] = Field(description="Folders of snapshots of this table, by one or many nodes; URIs too.")


@asset(
    key=CHANGES,
    deps=[SNAPSHOTS],
    group_name="lake",
    kinds={"spark", "deltalake"},
    partitions_def=token_ranges,
    check_specs=[AssetCheckSpec("changes_are_in_place", asset=CHANGES, blocking=True)],
)
def changes(
    context: AssetExecutionContext, config: BackfillConfig, spark: SparkResource, lake: LakeResource
) -> MaterializeResult:
    """Snapshots of a table as changes, one range of tokens a run. A range that failed is run again alone.

    Repeated runs add nothing, and replicas need no care: the merge leaves one of each cell.
    """
    session = spark.spark_session
    found = find_snapshots(config.paths)
    if found.schema.full_name != config.table:
        raise WritetimeError(f"{config.paths[0]} is a snapshot of {found.schema.full_name}, not of {config.table}")
    table = create_table(lake.settings, found.schema)
    share = token_ranges.get_partition_keys().index(context.partition_key)
    buckets = buckets_of_share(share, TOKEN_RANGES, table.buckets)
    added = dict(backfill(table, found, buckets, in_spark(session)))
    frame = session.read.format("delta").load(table.changes.storage.address)
    findings = quality.validate(
        frame.where(F.col(PARTITION).isin(list(buckets))), "changes", expectations.of_changes(buckets, table)
    )
    return MaterializeResult(
        metadata={
            "changes_added": sum(added.values()),
            "buckets": len(added),
            "sstables": len(found.paths),
            "snapshot": found.id,
            "table": config.table,
        },
        check_results=[from_findings("changes_are_in_place", findings)],
    )


@asset(
    key=STATE,
    deps=[CHANGES, LANDED],
    group_name="lake",
    kinds={"spark", "deltalake"},
    pool="lake_state",
    check_specs=[
        AssetCheckSpec(
            "levels_are_a_state",
            asset=STATE,
            blocking=True,
            description="Great Expectations on the new levels, before they are committed: what fails never is.",
        ),
        AssetCheckSpec(
            "write_times_are_past",
            asset=STATE,
            description="A write of the future outdoes every deletion until then: a client's clock may be wrong.",
        ),
    ],
)
def lake_state(
    config: TableConfig, spark: SparkResource, lake: LakeResource
) -> Iterator[AssetCheckResult | MaterializeResult]:
    """The changes of a table, merged, as levels: each run adds one for what is new, and folds those there are too many
    of. Its cost follows what is new and not the table."""
    session = spark.spark_session
    run = in_spark(session)
    table = open_table(lake.settings, config.table)
    of_levels: list[Finding] = []
    of_times: list[Finding] = []

    def staged(levels: Sequence[WrittenFile]) -> None:
        if not levels:
            return
        frame = expectations.levels(session, table, levels).persist()
        of_levels.extend(quality.validate(frame, "levels", expectations.of_levels()))
        of_times.extend(quality.validate(frame, "write times", expectations.of_write_times()))
        frame.unpersist()
        if not all(finding.success for finding in of_levels):
            raise Failure(f"{config.table}: the merged levels are no state; they are not committed")

    began = time.monotonic()
    try:
        folded = state.fold(table, run, staged)
        compacted = state.compact(table, run, staged)
    finally:
        yield from_findings("levels_are_a_state", of_levels)
        yield from_findings("write_times_are_past", of_times, AssetCheckSeverity.WARN)
    files = table.state.load().files
    yield MaterializeResult(
        metadata={
            "files_folded": folded,
            "buckets_compacted": compacted,
            "levels": len(files),
            "rows": sum(file.rows for file in files),
            "bytes": sum(file.size for file in files),
            "fold_seconds": round(time.monotonic() - began, 2),
            "table": config.table,
        }
    )


@asset(
    key=VIEW,
    deps=[STATE],
    group_name="lake",
    kinds={"spark", "deltalake"},
    pool="lake_view",
    check_specs=[AssetCheckSpec("rows_are_those_of_the_state", asset=VIEW)],
)
def lake_view(config: TableConfig, spark: SparkResource, lake: LakeResource) -> MaterializeResult:
    """The rows of a table as SELECT * answers, as a Delta table that any engine reads."""
    session = spark.spark_session
    table = open_table(lake.settings, config.table)
    began = time.monotonic()
    rows = views.refresh(table, in_spark(session))
    seconds = time.monotonic() - began
    frame = session.read.format("delta").load(table.view.storage.address)
    findings = quality.validate(frame, "view", expectations.of_view(table, rows))
    return MaterializeResult(
        metadata={
            "dagster/row_count": rows,
            "bytes": sum(file.size for file in table.view.load().files),
            "refresh_seconds": round(seconds, 2),
            "path": MetadataValue.path(table.view.storage.address),
            "table": config.table,
        },
        check_results=[from_findings("rows_are_those_of_the_state", findings)],
    )


class VerifyConfig(TableConfig):
    """How long to wait for replication."""

    wait_seconds: float = Field(default=10.0, ge=0, description="How long rows that differ are asked for again.")


@asset_check(
    asset=VIEW,
    name="rows_are_those_of_the_database",
    description="Compares the view with what the database answers now, by token ranges. What is only not captured yet "
    "is lag and passes. If the database cannot be reached, nothing is proven: a warning.",
)
def rows_are_those_of_the_database(config: VerifyConfig, lake: LakeResource) -> AssetCheckResult:
    """Prove the view against the database."""
    table = open_table(lake.settings, config.table)
    began = time.monotonic()
    try:
        report = verify(lake.settings, table, config.wait_seconds)
    except DatabaseUnreachable as e:
        return AssetCheckResult(
            passed=False, severity=AssetCheckSeverity.WARN, metadata={"table": config.table, "not_proven": str(e)}
        )
    lagging = [d for d in report.differences if d.lagging]
    return AssetCheckResult(
        passed=report.proven,
        metadata={
            "rows_in_the_database": sum(r.database_rows for r in report.ranges),
            "rows_in_the_lake": sum(r.lake_rows for r in report.ranges),
            "token_ranges": len(report.ranges),
            "rows_differing": len(report.real),
            "partitions_not_settled": report.unsettled,
            "rows_lagging": len(lagging),
            "lag_seconds": max((d.written_at - report.newest for d in lagging), default=0) / 1_000_000,
            "verify_seconds": round(time.monotonic() - began, 2),
            "differences": MetadataValue.json(json.loads(orjson.dumps(report.real[:_SHOWN]))),
            "table": config.table,
        },
    )
