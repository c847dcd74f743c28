"""The horizon. It decides which tombstones the state drops, and which snapshots are rejected because of this.

The horizon is a time. The state drops deletions whose deletion time and write time are not after it, and cells that
expired by then. The commit that drops them records the horizon. It is `gc_grace_seconds` before the time up to which
all writes have been captured by every registered source, or by the newest snapshot if there is no source.

The state keeps dropped entries in separate files. So late changes, with a write not after the horizon, are still exact:
they are merged with the entries that were dropped from their partitions (`bucket_contents`). A snapshot from before the
horizon is rejected. Its rows may have been deleted since, by a deletion that the database had dropped before it was
captured.
"""

from functools import partial

import numpy as np
import pyarrow as pa

from writetime.changes.model import field_name
from writetime.core.arrow import mask_of, one_chunk, pc
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text
from writetime.delta.parquet import open_file
from writetime.delta.storage import Storage
from writetime.delta.versions import DataFile, TableVersion
from writetime.lake.history import select
from writetime.lake.table import LakeTable
from writetime.schema.table import TableSchema

HORIZON = "horizon"
"""The number in a commit to `state` that has the horizon, in microseconds."""

NEWEST_SNAPSHOT = "writetime.newest_snapshot"
COMPLETE_SNAPSHOT = "writetime.complete_snapshot"
_SOURCE = "writetime.source."
TRUNCATED = "truncated/"
"""In a commit to `changes`, with the name of a source: the time of the source's last truncation of the table, in
microseconds.
"""

MAX_SNAPSHOT_SKEW = 86_400_000_000
"""Snapshots of several nodes within this time (microseconds) count as one, with the time of the last. A backup of a
cluster takes hours, and `gc_grace_seconds` may be 0.
"""

# Fields of changes, at any depth. A value of a user-defined type may have such a field, too.
WRITTEN = "write_time"
DELETED = ("deletion_time", "expiry")


def horizon_of(state: TableVersion) -> int:
    """Return the horizon of a version of the state, in microseconds; 0 if nothing has been dropped."""
    return state.transaction(HORIZON) or 0


def register_source(table: LakeTable, source: str) -> None:
    """Record that a source sends changes from now on. A tombstone is dropped only when the source's watermark is after
    it.
    """
    table.changes.set_property(_SOURCE + source, "registered")


def retire_source(table: LakeTable, source: str) -> None:
    """Record that a source sends no more changes."""
    table.changes.set_property(_SOURCE + source, "retired")


def watermark(source: str, instant: int) -> dict[str, int]:
    """Return a value for the `also` of `BucketedTable.append`. It records that the lake, with this batch, has all
    writes of the source before a time (microseconds). A watermark never decreases.
    """
    return {_watermark(source): instant}


def raise_snapshot(table: LakeTable, taken_at: int) -> None:
    """Record when a snapshot was taken (microseconds), if it is the newest."""
    table.changes.raise_property(NEWEST_SNAPSHOT, taken_at)


def raise_complete_snapshot(table: LakeTable, taken_at: int) -> None:
    """Record that the lake has all snapshots of a backfill, if they are the newest. `taken_at` is the time of the first
    of them (microseconds).
    """
    table.changes.raise_property(COMPLETE_SNAPSHOT, taken_at)


def registered_sources(changes: TableVersion) -> set[str]:
    """Return the sources that send changes."""
    properties = changes.properties.items()
    return {n.removeprefix(_SOURCE) for n, value in properties if n.startswith(_SOURCE) and value == "registered"}


def truncations(changes: TableVersion) -> dict[str, int]:
    """Return the time of the last truncation by each registered source (microseconds, 0 if none), by the name of its
    number.
    """
    names = [TRUNCATED + source for source in registered_sources(changes)]
    return {name: changes.transaction(name) or 0 for name in names}


def newest_snapshot(changes: TableVersion) -> int:
    """Return the time of the newest recorded snapshot (microseconds); 0 if there is none."""
    return int(changes.properties.get(NEWEST_SNAPSHOT, 0))


def complete_snapshot(changes: TableVersion) -> int:
    """Return the time of the newest snapshots that a backfill has completely loaded (microseconds), which is that of
    the first of them; 0 if there are none. The lake has all writes from before this time.
    """
    return int(changes.properties.get(COMPLETE_SNAPSHOT, 0))


def watermark_of(changes: TableVersion, source: str) -> int:
    """Return the watermark of a source (microseconds); 0 if it has none yet."""
    return changes.transaction(_watermark(source)) or 0


def captured_until(changes: TableVersion) -> int:
    """Return the time (microseconds) up to which all writes have been captured; 0 if that is not known."""
    sources = registered_sources(changes)
    return min((watermark_of(changes, source) for source in sources), default=newest_snapshot(changes))


def next_horizon(table: LakeTable, now: int, every_hours: float) -> int | None:
    """Return the horizon up to which tombstones may be dropped at a time (both in microseconds), if it is due.
    `every_hours` is the least move of the horizon, because each move rewrites the files with tombstones; 0 for never.
    """
    changes = table.changes.load()
    grace = table.schema(changes).gc_grace_seconds * 1_000_000
    horizon = min(now, captured_until(changes)) - grace
    due = horizon_of(table.state.load()) + round(every_hours * 3_600_000_000)
    return horizon if every_hours and horizon >= due else None


def require_newer(table: LakeTable, changes: TableVersion, first_at: int, last_at: int, snapshot_at: int) -> None:
    """Reject, by a `WritetimeError`, a snapshot that was taken before the horizon, or before the horizon that a newer
    snapshot implies, because the database itself had dropped deletions by then; and one from before a truncation.

    The times (microseconds) are those of the first and of the last node's snapshot, with incremental backups, and as
    `snapshot_at` that of the first node's one without them.
    """
    truncated_at = max(truncations(changes).values(), default=0)
    taken_at = first_at if last_at - first_at > MAX_SNAPSHOT_SKEW else last_at
    if snapshot_at <= truncated_at:
        raise WritetimeError(
            f"{table.name} was truncated at {instant_text(truncated_at)}: a snapshot taken at "
            f"{instant_text(snapshot_at)} is refused because its rows would come back; {_remedy(table)}"
        )
    grace = table.schema(changes).gc_grace_seconds * 1_000_000
    first = max(horizon_of(table.state.load()), newest_snapshot(changes) - grace)
    if taken_at < first:
        raise WritetimeError(
            f"{table.name}: a snapshot taken at {instant_text(taken_at)} is refused, because deletions up to "
            f"{instant_text(first)} may have been dropped, and the deleted data would come back; {_remedy(table)}"
        )


def _remedy(table: LakeTable) -> str:
    # The lake does not know whether the database is ScyllaDB.
    return f"take a new one on each node, with `nodetool snapshot`, or in Cassandra `writetime snapshot {table.name}`"


def without_dropped(state: pa.Table, schema: TableSchema, horizon: int) -> pa.Table:
    """Return a state without the deletions and the expired cells and markers before a horizon (microseconds)."""
    return select(state, schema, partial(_stays, horizon=horizon))


def only_dropped(state: pa.Table, schema: TableSchema, horizon: int) -> pa.Table:
    """Return the entries that `without_dropped` leaves out."""
    return select(state, schema, lambda cells: pc.invert(_stays(cells, horizon)))


def written_until(changes: pa.Table, schema: TableSchema, horizon: int) -> np.ndarray:
    """Return which changes have a write not after a horizon (microseconds), including one of a counter's shards."""
    names = ["marker", "tombstone", *(field_name(column) for column in schema.static + schema.regular)]
    return np.logical_or.reduce([_any_written(one_chunk(changes[name]), horizon) for name in names])


def may_drop(storage: Storage, file: DataFile, horizon: int) -> bool:
    """Return whether a level may have something to drop at a horizon (microseconds), by its statistics."""
    with open_file(storage, file.path) as opened:
        paths = {c: opened.schema.column(c).path for c in range(len(opened.schema))}
        columns = [c for c, path in paths.items() if path.rpartition(".")[2] in DELETED]
        groups = [opened.metadata.row_group(g) for g in range(opened.num_row_groups)]
        found = [group.column(c).statistics for group in groups for c in columns]
    # A column of the table may have such a name, and another type.
    return any(
        each is None or (each.has_min_max and isinstance(each.min, int) and each.min <= horizon // 1_000_000)
        for each in found
    )


def _any_written(array: pa.Array, until: int) -> np.ndarray:
    """Return which rows have a write time, at any depth, that is not after this one."""
    found = np.zeros(len(array), bool)
    if array.null_count == len(array):
        return found
    if pa.types.is_list(array.type):
        found[pc.list_parent_indices(array).to_numpy()[_any_written(array.flatten(), until)]] = True
    elif pa.types.is_struct(array.type):
        for field, values in zip(array.type, array.flatten(), strict=True):
            if field.name == WRITTEN and pa.types.is_int64(field.type):
                found |= mask_of(pc.less_equal(values, until).fill_null(False))
            else:
                found |= _any_written(values, until)
    return found


def _stays(cells: pa.StructArray, horizon: int) -> pa.Array:
    """Return which cells, markers or tombstones stay. A deleted counter stays: it also hides later increments."""
    names = {field.name for field in cells.type}
    if "shards" in names:
        return pc.is_valid(cells)
    ended = cells.field("expiry" if "expiry" in names else "deletion_time")
    dropped = pc.and_(pc.less_equal(ended, horizon // 1_000_000), pc.less_equal(cells.field(WRITTEN), horizon))
    return pc.invert(dropped.fill_null(False))


def _watermark(source: str) -> str:
    return f"watermark/{source}"
