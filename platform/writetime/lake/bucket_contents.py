"""The content of a bucket of a table: the levels of the state, and the changes that are not folded in yet.

The state moves old tombstones and expired data (`state.drop_tombstones`) into separate files, whose names begin with
`DROPPED`. These files are not levels. The dropped entries cover nothing in the levels, and no later writes. They may
cover only a *late* write, whose write time is not after the horizon. So waiting changes are first merged with the
dropped entries at the places of their late writes, and then with the levels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from writetime.delta.buckets import ALL, buckets_of
from writetime.delta.versions import DataFile, TableVersion, by_part
from writetime.files.cache import Cache
from writetime.files.key_ranges import KeyRanges, TokenRange, places_of
from writetime.files.merging import Source, merge_files
from writetime.files.point_reads import merge_places, merge_tokens
from writetime.lake.horizon import horizon_of, only_dropped, without_dropped, written_until
from writetime.lake.table import LakeTable
from writetime.merge import merge
from writetime.schema.table import TableSchema

DROPPED = "dropped-"

At = KeyRanges | TokenRange | None
"""What to merge: some places, the partitions with tokens of a range, or everything."""


def levels_of(state: TableVersion) -> list[DataFile]:
    """Return the levels of a version of the state."""
    return [file for file in state.files if not is_dropped(file.path)]


def dropped_of(state: TableVersion) -> list[DataFile]:
    """Return the files of the entries that a version of the state has dropped."""
    return [file for file in state.files if is_dropped(file.path)]


def is_dropped(path: str) -> bool:
    """Return whether a file of the state has dropped entries, by its path."""
    return path.rpartition("/")[2].startswith(DROPPED)


@dataclass(frozen=True)
class PendingChanges:
    """Changes of one, some or all buckets that are not in the state yet, and the entries that the state has dropped up
    to a horizon (microseconds). It can be sent to a task.
    """

    changes: tuple[Source, ...]
    dropped: tuple[Source, ...]
    horizon: int
    buckets: int
    cache: Cache

    @property
    def has_dropped_nothing(self) -> bool:
        """Whether the state has dropped nothing."""
        return not any(source.files for source in self.dropped)

    def merged(self, schema: TableSchema, at: At = None) -> pa.Table:
        """Merge the changes without the cells that dropped entries cover: all, or those at some places or in some
        partitions, which are read through the cache.
        """
        changes = _merged(self.changes, schema, at, self.cache)
        dropped = merge([], schema) if self.has_dropped_nothing else self._dropped(changes, schema)
        if not dropped.num_rows:
            return changes
        # All that is left of `dropped` is dropped again. The deletions among the changes stay: they may cover data in
        # the levels.
        left = without_dropped(merge([changes, dropped], schema), schema, self.horizon)
        return merge([left, only_dropped(changes, schema, self.horizon)], schema)

    def _dropped(self, changes: pa.Table, schema: TableSchema) -> pa.Table:
        """Return the dropped entries at the places of late writes."""
        late = changes.filter(pa.array(written_until(changes, schema, self.horizon)))
        owners = {ALL, *np.unique(buckets_of(late["token"], self.buckets)).tolist()} if len(late) else set()
        sources = [replace(s, files=tuple(f for f in s.files if f.bucket in owners)) for s in self.dropped]
        return merge_places(sources, schema, places_of(late), self.cache)


@dataclass(frozen=True)
class BucketContents:
    """The content of one, some or all buckets: the levels, and the changes that wait. It can be sent to a task."""

    levels: tuple[Source, ...]
    waiting: PendingChanges

    @property
    def sources(self) -> tuple[Source, ...]:
        """The files of the levels and of the changes."""
        return self.levels + self.waiting.changes

    def of_part(self, part: int, parts: int) -> "BucketContents":
        """Return the content without the files of buckets that are outside one of equal parts of the token range."""
        buckets = self.waiting.buckets
        levels, changes, dropped = (
            tuple(
                replace(s, files=tuple(f for f in s.files if f.bucket == ALL or f.bucket * parts // buckets == part))
                for s in sources
            )
            for sources in (self.levels, self.waiting.changes, self.waiting.dropped)
        )
        return BucketContents(levels, replace(self.waiting, changes=changes, dropped=dropped))

    def merged(self, schema: TableSchema, at: At = None) -> pa.Table:
        """Merge the whole content, or some places or partitions, like `PendingChanges.merged`."""
        if self.waiting.has_dropped_nothing:
            return _merged(self.sources, schema, at, self.waiting.cache)
        return _merged(self.levels, schema, at, self.waiting.cache, self.waiting.merged(schema, at))


def combined(found: Sequence[BucketContents]) -> BucketContents:
    """Return the content of several buckets of a table."""
    levels = tuple(source for one in found for source in one.levels)
    changes = tuple(source for one in found for source in one.waiting.changes)
    dropped = tuple(source for one in found for source in one.waiting.dropped)
    return BucketContents(levels, replace(found[0].waiting, changes=changes, dropped=dropped))


def _merged(
    sources: Iterable[Source],
    schema: TableSchema,
    at: At,
    cache: Cache,
    start: pa.Table | None = None,
) -> pa.Table:
    match at:
        case None:
            return merge_files(sources, schema, start=start)
        case KeyRanges():
            return merge_places(sources, schema, at, cache, start)
        case TokenRange():
            return merge_tokens(sources, schema, at, cache, start)


class StateFiles:
    """The files of a version of the state, by bucket, or by larger equal parts of the token range.

    By default this is the state as it is. With `since` (microseconds), it is the state as if nothing that was written
    or expired after that time had been dropped: the dropped entries are merged with the levels again.
    """

    def __init__(
        self, table: LakeTable, state: TableVersion, since: int | None = None, parts: int | None = None
    ) -> None:
        self._table = table
        self._parts = table.buckets if parts is None else parts
        is_as_it_is = since is None or horizon_of(state) < since
        self._horizon = horizon_of(state) if is_as_it_is else 0
        self._levels = by_part(levels_of(state) if is_as_it_is else state.files, self._parts, table.buckets)
        self._dropped = by_part(dropped_of(state) if is_as_it_is else [], self._parts, table.buckets)

    def waiting(self, part: int, files: Iterable[DataFile]) -> PendingChanges:
        """Return files of `changes` that are to be merged with a part."""
        table = self._table
        changes = Source.of_bucket(table.changes.storage, files, part, self._parts)
        return PendingChanges((changes,), (self._of(self._dropped, part),), self._horizon, table.buckets, table.cache)

    def all_contents(self, files: Mapping[int, Sequence[DataFile]]) -> dict[int, BucketContents]:
        """Return the content of each part, with these files of `changes` by part, in the order of the parts."""
        return {
            part: BucketContents((self._of(self._levels, part),), self.waiting(part, files.get(part, ())))
            for part in sorted(self._levels.keys() | files.keys())
        }

    def _of(self, files: Mapping[int, Sequence[DataFile]], part: int) -> Source:
        return Source.of_bucket(self._table.state.storage, files.get(part, ()), part, self._parts)
