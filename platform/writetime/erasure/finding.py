"""Finds up to when places of a table are erased, and refuses those that must not be.

A place is erased up to its newest deletion, or an earlier erasure: what is older no longer exists in the database
either, and what is newer is new data. The newest write is not enough. After deletions of single rows, or the end of a
TTL, an older write of another row or cell that is on its way counts.
"""

from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa

from writetime.changes.model import PARTITION_TOMBSTONE, RANGE_TOMBSTONE, ROW, STATIC
from writetime.core.arrow import one_chunk, pc
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.delta.buckets import buckets_of
from writetime.erasure.files import require_no_bound
from writetime.erasure.places import UNKNOWN, ErasedPlaces, place_of
from writetime.files.key_ranges import KeyRanges, only_at
from writetime.lake.bucket_contents import BucketContents, StateFiles, combined
from writetime.lake.earlier import earlier_generations
from writetime.lake.erasures import Erasures, all_erasures, beginnings_of
from writetime.lake.history import without_later_drops
from writetime.lake.state import pending
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now
from writetime.merge import live_rows, merge
from writetime.merge.order import kind_codes
from writetime.row_events.write_times import latest_writes
from writetime.schema.table import TableSchema


def find_places(table: LakeTable, ranges: KeyRanges) -> ErasedPlaces:
    """Return places that are to be erased. Each is erased up to its newest deletion, or an earlier erasure of it. A
    partition of which the changes have nothing is only searched (`UNKNOWN`), because its writes may be on their way.

    Raises:
        WritetimeError: a place has live rows or no deletion of all its writes, or a deletion of a range needs the
            clustering values of rows.
    """
    ranges = _without_inner(ranges)
    none = np.full(len(ranges.keys), UNKNOWN)
    places = ErasedPlaces(ranges, none, none)
    merged, changes = table.state.load(), table.changes.load()
    # With the deletions that it has dropped.
    contents = StateFiles(table, merged, since=1).all_contents(pending(table, changes, merged))
    owners = np.unique(buckets_of(pa.array(places.tokens), table.buckets)).tolist()
    held = [contents[bucket] for bucket in owners if bucket in contents]
    _require_no_bounds(table, places)
    erasures, schema = all_erasures(table), table.schema(changes)
    _require_dead(table, places, _merged(held, schema, ranges), erasures)
    # Cells of columns that were dropped count, too.
    whole = without_later_drops(table.whole_schema(changes), -1)
    until, events_until, deleted = _newest(places, _merged(held, whole, ranges), whole)
    beginnings = beginnings_of(schema)
    for i, (key, first) in enumerate(zip(ranges.keys.to_pylist(), ranges.first.to_pylist(), strict=True)):
        recorded = erasures.until_at(key, beginnings(first, None))
        known = max(deleted[i], UNKNOWN if recorded is None else recorded)
        if until[i] > known or (first and known == UNKNOWN):
            raise _without_deletion(table)
        until[i] = known
    return replace(places, until=until, events_until=np.maximum(until, events_until))


def _without_inner(ranges: KeyRanges) -> KeyRanges:
    """Return ranges, which are in order, without those that are within another one."""
    kept: list[int] = []
    whole = list(zip(ranges.keys.to_pylist(), ranges.first.to_pylist(), ranges.end.to_pylist(), strict=True))
    for i, (key, _, end) in enumerate(whole):
        if not kept or whole[kept[-1]][0] != key or whole[kept[-1]][2] < end:
            kept.append(i)
    taken = pa.array(kept, pa.int64())
    return KeyRanges(ranges.tokens[kept], *(each.take(taken) for each in (ranges.keys, ranges.first, ranges.end)))


def _merged(held: list[BucketContents], schema: TableSchema, ranges: KeyRanges) -> pa.Table:
    return only_at(combined(held).merged(schema, ranges) if held else merge([], schema), ranges)


def _require_no_bounds(table: LakeTable, places: ErasedPlaces) -> None:
    """Raise the error of `require_no_bound` if a file has such a deletion."""
    if places.are_whole.all():
        return
    owners, changes = places.buckets(table.buckets), table.changes.load()
    earlier = chain.from_iterable(each.files for each in earlier_generations(table, changes).values())
    storages = ((table.changes.storage, (*changes.files, *earlier)), (table.state.storage, table.state.load().files))
    for storage, files in storages:
        for file in files:
            is_there = file.bucket in owners and storage.filesystem().get_file_info(file.path).is_file
            if is_there and (found := places.placed(storage, file.path)) is not None:
                require_no_bound(places, found, table.name)


def _require_dead(table: LakeTable, places: ErasedPlaces, merged: pa.Table, erasures: Erasures) -> None:
    """Raise a `WritetimeError` if a merge of the places has live rows in them."""
    schema = table.schema()
    own = merged.filter(pa.array(places.index(merged) >= 0))
    # What earlier erasures left out, a copy of the lake may have again. Landing leaves out the deletion, too.
    batches = [batch for part in own.to_batches() for batch in erasures.left(part, schema)]
    left = pa.concat_tables([own.slice(0, 0), *(pa.Table.from_batches([batch]) for batch in batches)])
    live = live_rows(left, schema, time_now() // 1_000_000)
    if live.num_rows:
        raise WritetimeError(
            f"{table.name}: what is to be erased has {pluralize(live.num_rows, 'live row')} in the lake. Only data "
            "that the database no longer has is erased: delete the partitions or rows there, by DELETE FROM .. WHERE "
            "<the same key>, and run this again when the deletions have landed"
        )


def _without_deletion(table: LakeTable) -> WritetimeError:
    return WritetimeError(
        f"{table.name}: the lake has no deletion that covers all that a key names and is as new as all its writes, so "
        "it does not know which writes that are on their way count: delete the partition or rows in the database, by "
        "DELETE FROM .. WHERE <the same key>, and run this again when the deletions have landed"
    )


def _newest(places: ErasedPlaces, merged: pa.Table, schema: TableSchema) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the newest write of each place in a merge, with the deletions that cover it; that of this and the static
    cells of its partition; and the newest deletion that covers it.
    """
    latest, index = latest_writes(merged, schema), places.index(merged)
    until, static, deleted = (np.full(len(places.tokens), UNKNOWN) for _ in range(3))
    np.maximum.at(until, index[index >= 0], latest[index >= 0])
    times = pc.struct_field(one_chunk(merged["tombstone"]), "write_time").fill_null(UNKNOWN).to_numpy()
    kinds = kind_codes(one_chunk(merged["kind"]))
    gone = np.flatnonzero((kinds == PARTITION_TOMBSTONE) & (index >= 0))
    np.maximum.at(deleted, index[gone], times[gone])
    some = np.flatnonzero((index < 0) | ~places.are_whole[index])
    for i, each in zip(some.tolist(), merged.select(["key", "position", "end"]).take(some).to_pylist(), strict=True):
        key, position = each["key"], each["position"]
        if kinds[i] == RANGE_TOMBSTONE:
            covered = places.around(key, position, each["end"])
        else:
            covered = places.around(*place_of(key, position if kinds[i] == ROW else None))
        if kinds[i] == STATIC:
            static[covered] = np.maximum(static[covered], latest[i])
        else:
            deleted[covered] = np.maximum(deleted[covered], times[i])
    until = np.maximum(until, deleted)
    return until, np.maximum(until, static), deleted
