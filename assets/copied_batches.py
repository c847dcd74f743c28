"""The batches of a replay queue that the lake has, by Dagster's materializations.

The cursor of the queue's sensor has them. So a tick reads only the materializations since the last one, and its cost
does not grow with the number of batches. All are read if the sensor has no cursor or one that is not its own, and if
the newest materialization that the cursor names is gone, because someone wiped the asset or deleted the run.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self

import dagster as dg

from writetime_dagster.assets.cursors import of_cursor

# The number of materializations that one query reads.
_AT_ONCE = 1_000


@dataclass(frozen=True)
class _Kept:
    """The content of the cursor; `missing` has the first and the last number of each stretch."""

    newest: int
    last: int
    missing: list[tuple[int, int]]


@dataclass(frozen=True)
class CopiedBatches:
    """The batches up to `last` have partitions, and all of them are in the lake, except for those that are `missing`.
    `newest` is the storage id of the newest materialization that was read, 0 if there is none.
    """

    newest: int
    last: int
    missing: Sequence[int]

    @classmethod
    def of_cursor(cls, cursor: str | None, first: int, head: int) -> Self | None:
        """Return the batches as of the last tick; None without a cursor that the sensor of a queue may have written
        that has the batches from `first` to `head`.
        """
        kept = of_cursor(cursor, _Kept)
        if kept is None or min(kept.newest, kept.last) < 0 or kept.last > head:
            return None
        ends = [end for begin, last in kept.missing for end in (begin, last + 1)]
        if ends != sorted(set(ends)) or (ends and (ends[0] < 1 or ends[-1] > kept.last + 1)):
            return None
        # Without a materialization, all batches are missing.
        if not kept.newest and kept.last >= first and (len(ends) != 2 or ends[0] > first or ends[1] <= kept.last):
            return None
        return cls(kept.newest, kept.last, [n for first, last in kept.missing for n in range(first, last + 1)])

    @property
    def cursor(self) -> str:
        """The text of the cursor."""
        return json.dumps({"newest": self.newest, "last": self.last, "missing": list(_stretches(self.missing))})

    @property
    def in_lake(self) -> int:
        """The batch up to which the lake has all batches."""
        return self.missing[0] - 1 if self.missing else self.last

    def read_on(self, instance: dg.DagsterInstance, key: dg.AssetKey) -> Self | None:
        """Return the batches with the materializations since; None if the newest known one is gone."""
        # The newest known one is read again, which shows that it still exists.
        records = _materializations(instance, key, max(self.newest - 1, 0))
        if self.newest:
            known = next(records, None)
            if known is None or known.storage_id != self.newest:
                return None
        newest, done = self.newest, set[str | None]()
        for record in records:
            newest = record.storage_id
            done.add(record.partition_key)
        return replace(self, newest=newest, missing=[n for n in self.missing if str(n) not in done])

    def new(self, first: int, head: int, most: int) -> range:
        """Return at most this many batches without a partition, from the `first` existing one to the `head`."""
        begin = max(self.last + 1, first)
        return range(begin, max(begin, min(head + 1, begin + most)))

    def extended(self, first: int, new: range) -> Self:
        """Return the batches with new ones, which are missing, and without those before the `first` existing one."""
        return replace(self, last=new.stop - 1, missing=[*(n for n in self.missing if n >= first), *new])


def all_copied(instance: dg.DagsterInstance, key: dg.AssetKey, partitions: str) -> CopiedBatches:
    """Return the batches by all partitions of this name, and all materializations of the asset."""
    # Read first: later ones are read again.
    newest = instance.fetch_materializations(key, limit=1).records
    known = {int(name) for name in instance.get_dynamic_partitions(partitions)}
    done = {int(name) for name in instance.get_materialized_partitions(key)}
    return CopiedBatches(newest[0].storage_id if newest else 0, max(known, default=0), sorted(known - done))


def _materializations(instance: dg.DagsterInstance, key: dg.AssetKey, after: int) -> Iterator[dg.EventLogRecord]:
    """Yield the materializations with later storage ids, in their order."""
    more = True
    while more:
        since = dg.AssetRecordsFilter(asset_key=key, after_storage_id=after)
        found = instance.fetch_materializations(since, limit=_AT_ONCE, ascending=True)
        for record in found.records:
            after = record.storage_id
            yield record
        more = found.has_more


def _stretches(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each stretch of consecutive numbers."""
    for _, stretch in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [n for _, n in stretch]
        yield found[0], found[-1]
