"""Backfill: snapshots of a table on its nodes -> the lake's changes, by token range.

This module has the assets of one table with their checks and metadata, and the sensor that finds new backups.
`writetime.lake.backfill` reads the snapshots, and `writetime.storage` decodes the SSTables.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg
from pydantic import Field

from writetime.clients.node_snapshots import clear_snapshot, new_tag, take_snapshot
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError, reason_of
from writetime.delta.buckets import buckets_of_share
from writetime.lake.backfill import (
    SnapshotFiles,
    backfill,
    backup_names,
    complete_schema,
    find_snapshots,
    lacking_nodes,
    untaken,
)
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import create_table
from writetime.storage.folders import Seen
from writetime.storage.locations import without_secrets
from writetime_dagster.assets import expectations
from writetime_dagster.assets.automation import sensor_of
from writetime_dagster.assets.builders import table_asset
from writetime_dagster.assets.cursors import of_cursor
from writetime_dagster.assets.naming import PARTS, documents, key_of, pool_of
from writetime_dagster.assets.staging import StagedFiles, Suite
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource

# The number of parts of the token range. If a table has fewer buckets, some parts have no work.
TOKEN_RANGES = 16
# Parts per run of a backfill. Each run has a fixed cost, but a failure fails the whole run.
_RANGES_PER_RUN = 4
# The number of materializations that one query reads from Dagster's storage.
_AT_ONCE = 100
token_ranges = dg.StaticPartitionsDefinition([f"tokens-{i:02d}-of-{TOKEN_RANGES}" for i in range(TOKEN_RANGES)])


class BackfillConfig(dg.Config):
    """The snapshots to read."""

    paths: list[str] = Field(
        default=[],
        description="Folders or URLs of snapshots or backups; default: those of the table's entry, or the last "
        "snapshot taken.",
    )


def snapshots(table: FollowedTable) -> dg.AssetsDefinition | dg.AssetSpec:
    """Return the snapshots of a table: those that its entry names, or those that a run takes."""
    if table.entry.snapshots:
        places = ", ".join(map(without_secrets, table.entry.snapshots))
        return dg.AssetSpec(
            key_of(table.name, "snapshots"),
            deps=[key_of(table.name, "table")],
            group_name=PARTS["snapshots"],
            kinds={"cassandra"},
            description=f"Snapshots or backups of {table.name} by its nodes: {places}. The sensor `new_backups` "
            "records new ones.",
            metadata=documents("docs/lake.md"),
        )

    # Its pool is that of the backfill, too: a snapshot that is being read must not be deleted.
    @table_asset(
        table,
        "snapshots",
        after=["table"],
        kinds={"cassandra"},
        files=["docs/lake.md"],
        description=f"A snapshot of {table.name} on the Cassandra node of this machine. The snapshots of previous "
        "runs are deleted. For several nodes or ScyllaDB, name their folders as `snapshots` in the table's "
        "entry.",
    )
    def take(context: dg.AssetExecutionContext, database: DatabaseResource) -> Iterator[dg.MaterializeResult]:
        tags = _Tags(context.instance, table)
        last = _taken(context.instance, table).get("tag")
        kept = [str(last.value)] if last else []
        for tag in tags.read() - {*kept}:
            clear_snapshot(database.settings, table.name, tag)
        tag = new_tag()
        tags.write(*kept, tag)
        folders = take_snapshot(database.settings, table.name, tag)
        size = sum(file.stat().st_size for folder in folders for file in folder.iterdir())
        yield dg.MaterializeResult(
            metadata={"tag": tag, "folders": dg.MetadataValue.json(list(map(str, folders))), "bytes": size}
        )
        # Only now, since a backfill after a kill must not look for a snapshot that is deleted.
        for old in kept:
            clear_snapshot(database.settings, table.name, old)
        tags.write(tag)

    return take


def build_backfill_asset(table: FollowedTable) -> dg.AssetsDefinition:
    """Return the asset that reads snapshots of a table into the lake."""

    @table_asset(
        table,
        "backfill",
        after=["snapshots"],
        kinds={"spark", "deltalake"},
        files=("docs/lake.md", "docs/formats.md"),
        pool=pool_of(table.name, "snapshots"),
        partitions_def=token_ranges,
        backfill_policy=dg.BackfillPolicy.multi_run(_RANGES_PER_RUN),
        automation_condition=dg.AutomationCondition.eager(),
        blocking={
            "changes_are_in_place": "Great Expectations on the changes that were read: keys, kinds, order, buckets. "
            "Changes that fail are not committed.",
        },
        description=f"Snapshots of {table.name} as changes in the lake, read from files instead of the database, "
        "by token range. Only failed ranges run again, and only SSTables that a range does not have yet are read. "
        "Replicas need no special handling: the merge keeps one version of each cell.",
    )
    def bring_in(
        context: dg.AssetExecutionContext, config: BackfillConfig, spark: SparkResource, lake: LakeResource
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        found = _found(lake.settings, table, config.paths or _last_taken(context, table))
        in_lake = create_table(lake.settings, found.schema)

        staged = StagedFiles(
            {"changes_are_in_place": Suite(expectations.of_changes)},
            lambda files: expectations.changes(spark.spark_session, in_lake, files),
            f"{table.name}: the changes of the snapshot are not as expected; they are not committed",
        )
        shares = sorted(map(token_ranges.get_partition_keys().index, context.partition_keys))
        buckets = sorted({b for share in shares for b in buckets_of_share(share, TOKEN_RANGES, in_lake.buckets)})
        new = untaken(in_lake, found, buckets)
        added = yield from staged.during(lambda: dict(backfill(in_lake, found, buckets, spark.run, staged)))
        yield dg.MaterializeResult(
            metadata={
                "changes_added": sum(added.values()),
                "buckets": len(added),
                "sstables": len(found.files),
                "sstables_new": len(new),
                "nodes_without_backup": dg.MetadataValue.json(lacking_nodes(in_lake, found)),
            }
        )

    return bring_in


def new_backups(tables: Sequence[FollowedTable], seconds: float = 30.0) -> dg.SensorDefinition:
    """Return the sensor that records new backups at the places that entries name. It lists the places, but reads no
    backup. The sensor `new_snapshots` starts the backfill.

    Args:
        tables: the tables whose entries name places.
        seconds: how long to wait for places. Dagster ends an evaluation after a minute.
    """
    listing = _Listing(tables)

    @sensor_of(
        300,
        "Tables: records each new backup at the places that a table's entry names, by their listing, as a "
        "materialization of its snapshots. The sensor `new_snapshots` starts the backfill.",
        records=[key_of(table.name, "snapshots") for table in tables],
    )
    def new_backups(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        known = of_cursor(context.cursor, dict[str, str]) or {}
        seen: dict[str, str] = {}
        events: list[dg.AssetMaterialization] = []
        changed: list[str] = []
        faults: list[str] = []
        for table, names in listing.look(seconds):
            if isinstance(names, str):
                faults.append(f"{table.name}: {names}")
                continue
            seen[table.name] = hashlib.sha256("\n".join(names).encode()).hexdigest()
            if names and seen[table.name] != known.get(table.name):
                changed.append(table.name)
                events.append(dg.AssetMaterialization(key_of(table.name, "snapshots"), metadata={"found": len(names)}))
        found = f"recorded: {', '.join(changed)}" if changed else "no place has a new backup"
        reason = "; ".join([found, *faults])
        return dg.SensorResult(
            asset_events=events,
            cursor=json.dumps(known | seen),
            skip_reason=dg.SkipReason(reason),
        )

    return new_backups


class _Listing:
    """The names of the backups of some tables. One thread per place lists it, and continues between two ticks if the
    listing takes long. So a place that does not answer occupies one thread, and delays only the tables that have no
    other place. A place is listed once for all of its tables, and a file that was found is not requested again.
    """

    def __init__(self, tables: Sequence[FollowedTable]) -> None:
        self._tables = tables
        self._by_places: dict[tuple[str, ...], list[FollowedTable]] = {}
        for table in tables:
            self._by_places.setdefault(tuple(table.entry.snapshots), []).append(table)
        self._seen = {places: Seen() for places in self._by_places}
        self._threads: dict[tuple[str, ...], threading.Thread] = {}
        self._found: dict[str, list[str] | str] = {}

    def look(self, seconds: float) -> list[tuple[FollowedTable, list[str] | str]]:
        """Wait for some seconds at most. Return for each table the names of its backups, or why they are not known."""
        end = time.monotonic() + seconds
        for places, some in self._by_places.items():
            if places not in self._threads or not self._threads[places].is_alive():
                # A daemon thread: the process may end while a place does not answer.
                self._threads[places] = threading.Thread(
                    target=self._ask, args=(some, self._seen[places]), name="backups", daemon=True
                )
                self._threads[places].start()
        for thread in self._threads.values():
            thread.join(max(end - time.monotonic(), 0))
        silent = f"its places did not answer for {seconds:g} s"
        return [(table, self._found.pop(table.name, silent)) for table in self._tables]

    def _ask(self, some: Sequence[FollowedTable], seen: Seen) -> None:
        seen.look_again()
        for table in some:
            try:
                self._found[table.name] = backup_names(table.entry.snapshots, table.name, seen)
            except Exception as e:
                self._found[table.name] = reason_of(e)


def _found(settings: Settings, table: FollowedTable, paths: Sequence[str]) -> SnapshotFiles:
    """Return the SSTables of a table at some places, with the table's dropped columns.

    Raises:
        WritetimeError: they are those of another table.
    """
    found = find_snapshots(paths, table=table.name)
    if found.schema.full_name != table.name:
        raise WritetimeError(
            f"{without_secrets(found.paths[0])} belongs to a snapshot of {found.schema.full_name}, not of {table.name}"
        )
    return complete_schema(settings, found)


class _Tags:
    """The names of the snapshots that runs may have left on the node, in Dagster's storage. A name is written before
    its snapshot is taken, so that the next run can delete the snapshot of a run that was killed.
    """

    def __init__(self, instance: dg.DagsterInstance, table: FollowedTable) -> None:
        self._storage = instance.daemon_cursor_storage
        self._key = f"writetime/snapshots/{table.name}"

    def read(self) -> set[str]:
        return set(json.loads(self._storage.get_cursor_values({self._key}).get(self._key, "[]")))

    def write(self, *tags: str) -> None:
        self._storage.set_cursor_values({self._key: json.dumps(tags)})


def _last_taken(context: dg.AssetExecutionContext, table: FollowedTable) -> list[str]:
    if table.entry.snapshots:
        return table.entry.snapshots
    folders = _taken(context.instance, table).get("folders")
    if folders is None:
        raise WritetimeError(
            f"there is no snapshot of {table.name}: materialize {key_of(table.name, 'snapshots').to_user_string()}, "
            "or name snapshots in its entry"
        )
    assert isinstance(folders.value, list)
    return [str(folder) for folder in folders.value]


def _taken(instance: dg.DagsterInstance, table: FollowedTable) -> Mapping[str, dg.MetadataValue]:
    """Return the metadata of the last snapshot that a run took, or nothing if no run took one. Materializations that
    the sensor `new_backups` and the web UI record have no folders, so they do not count.
    """
    cursor, more = None, True
    while more:
        found = instance.fetch_materializations(key_of(table.name, "snapshots"), limit=_AT_ONCE, cursor=cursor)
        for record in found.records:
            made = record.asset_materialization
            if made and "folders" in made.metadata:
                return made.metadata
        cursor, more = found.cursor, found.has_more
    return {}
