"""The lake: snapshots -> changes, by token range -> state -> view.

What belongs here: the assets, their checks, their metadata. Not here: how the tables work (`writetime.lake`).
"""

import great_expectations.expectations as gxe
from dagster import (
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetSpec,
    Config,
    MaterializeResult,
    MetadataValue,
    StaticPartitionsDefinition,
    asset,
)
from pydantic import Field
from pyspark.sql import functions as F

from assets.checks import from_findings
from resources import LakeResource, SparkResource
from writetime import quality
from writetime.changes import KINDS
from writetime.errors import WritetimeError
from writetime.lake import state, views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.buckets import buckets_of_share, token_range
from writetime.lake.parquet import PARTITION
from writetime.lake.spark import in_spark
from writetime.lake.table import create_table, open_table

SNAPSHOTS = AssetKey(["sources", "snapshots"])
CHANGES = AssetKey(["lake", "changes"])
STATE = AssetKey(["lake", "state"])
VIEW = AssetKey(["lake", "view"])

# Shares of the token's range; a table with fewer buckets has nothing to do in some of them.
TOKEN_RANGES = 16
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
    first, last = (token_range(b, table.buckets) for b in (buckets[0], buckets[-1])) if buckets else ((0, 0), (0, 0))
    findings = quality.validate(
        frame.where(F.col(PARTITION).isin(list(buckets))),
        "changes",
        [
            gxe.ExpectColumnValuesToNotBeNull(column="key"),
            gxe.ExpectColumnValuesToNotBeNull(column="position"),
            gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=list(KINDS)),
            gxe.ExpectColumnValuesToBeBetween(column="token", min_value=first[0], max_value=last[1]),
        ],
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


@asset(key=STATE, deps=[CHANGES], group_name="lake", kinds={"spark", "deltalake"}, pool="lake_state")
def lake_state(config: TableConfig, spark: SparkResource, lake: LakeResource) -> MaterializeResult:
    """The changes of a table, merged, as levels: each run adds one for what is new, and folds those there are too many
    of. Its cost follows what is new and not the table."""
    run = in_spark(spark.spark_session)
    table = open_table(lake.settings, config.table)
    folded = state.fold(table, run)
    compacted = state.compact(table, run)
    files = table.state.load().files
    return MaterializeResult(
        metadata={
            "files_folded": folded,
            "buckets_compacted": compacted,
            "levels": len(files),
            "rows": sum(file.rows for file in files),
            "bytes": sum(file.size for file in files),
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
    rows = views.refresh(table, in_spark(session))
    schema = table.schema()
    frame = session.read.format("delta").load(table.view.storage.address)
    keys = [c.name for c in schema.partition_key]
    findings = quality.validate(
        frame,
        "view",
        [
            gxe.ExpectTableRowCountToEqual(value=rows),
            *(gxe.ExpectColumnValuesToNotBeNull(column=name) for name in keys),
            gxe.ExpectCompoundColumnsToBeUnique(column_list=[PARTITION, *keys, *(c.name for c in schema.clustering)]),
        ],
    )
    return MaterializeResult(
        metadata={
            "dagster/row_count": rows,
            "path": MetadataValue.path(table.view.storage.address),
            "table": config.table,
        },
        check_results=[from_findings("rows_are_those_of_the_state", findings)],
    )
