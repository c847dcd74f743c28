"""The copy of a table in another cluster: the changes in the lake -> the table of the cluster `replicate_to`."""

import time

import dagster as dg

from writetime.core.instants import instant_text
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import open_table
from writetime.replication.replicated_part import ReplicatedPart
from writetime.replication.replicating import replicator
from writetime_dagster.assets.builders import table_asset
from writetime_dagster.resources import LakeResource


def build_replica_asset(table: FollowedTable, cluster: str) -> dg.AssetsDefinition:
    """Return the copy of a table in a cluster of the settings."""

    @table_asset(
        table,
        "replica",
        after=["changes"] if table.entry.capture else ["backfill"],
        kinds={"cassandra"},
        files=["docs/replication.md"],
        description=f"The table {table.name} in the cluster `{cluster}`. Each run writes the changes that it lacks, "
        "with their write times; the first one writes the whole table. After a failure, run it again.",
    )
    def replicate(lake: LakeResource) -> dg.MaterializeResult:
        in_lake = open_table(lake.settings, table.name)
        began = time.monotonic()
        with replicator(lake.settings, in_lake, cluster, ReplicatedPart.of_entry(table.entry)) as opened:
            written = opened.replicate(in_lake)
            position = opened.position
        until = position.complete_until if position else 0
        return dg.MaterializeResult(
            metadata={
                "rows": written,
                "complete_until": instant_text(until) if until else "not known",
                "behind_seconds": round(time.time() - until / 1e6, 1) if until else None,
                "replicate_seconds": round(time.monotonic() - began, 2),
                "cluster": cluster,
            }
        )

    return replicate
