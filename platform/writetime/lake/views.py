"""Views: the live rows at a time, computed on request (virtual) or stored as files (compacted).

`BucketView` computes the rows of one bucket: it merges the levels of the state and the changes that are not folded in
yet, as of a time. The virtual view, and a compacted view that is written whole, have these rows. Other refreshes
compute only the rows that changed (`row_events.changed_rows`).
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from writetime.delta.storage import Storage
from writetime.delta.store_clock import micros_behind
from writetime.delta.versions import DataFile, TableVersion, by_bucket
from writetime.files.merging import Source, merge_files
from writetime.files.row_form import to_micros
from writetime.lake.bucket_contents import BucketContents, PendingChanges
from writetime.lake.earlier import changes_at
from writetime.lake.history import require_history, until
from writetime.lake.state import contents
from writetime.lake.table import LakeTable
from writetime.merge import live_rows
from writetime.schema.table import TableSchema


@dataclass(frozen=True)
class BucketView:
    """The rows of one bucket at a time (microseconds), and the places of its files. It can be sent to a task.

    `only_until` leaves out writes after that time. Then the view is computed from changes alone, and these are
    complete.
    """

    bucket: int
    contents: BucketContents
    schema: TableSchema
    as_of: int
    only_until: bool
    target: Storage

    def rows(self, unfit: Counter[str] | None = None) -> pa.Table:
        """Compute the rows; `unfit` is as in `row_form.fit`."""
        return to_micros(live_rows(self.state(), self.schema, self.as_of // 1_000_000), self.schema, unfit)

    def state(self) -> pa.Table:
        """Compute the state: all cells and tombstones."""
        if self.only_until:
            up_to = partial(until, schema=self.schema, instant=self.as_of)
            return merge_files(self.contents.waiting.changes, self.schema, up_to)
        return self.contents.merged(self.schema)


def bucket_views(table: LakeTable, as_of: int | None = None) -> list[BucketView]:
    """Return the parts of a table's rows to compute, one entry per bucket. All writes with write times up to `as_of`
    (microseconds) count. If it is None, all writes count, including those with a write time in the future, and cells
    expire as of now. Raise `WritetimeError` if the changes in the lake cannot show this time.
    """
    # The state first: changes that are folded and then merged away in between are in files that name their version.
    state = table.state.load()
    changes = table.changes.load()
    schema = table.schema(changes)
    if as_of is None:
        return present_views(table, state, changes, time_now())
    require_history(table, changes, as_of)
    return _views_until(table, changes.by_bucket, schema, as_of)


def views_at(table: LakeTable, instant: int | None = None, version: int | None = None) -> list[BucketView]:
    """Return the parts of a table's rows as they were at a time (microseconds), like `bucket_views`, but with the
    columns of that time (`history.schema_at`), and also from before a TRUNCATE, or DROP and CREATE. There is at least
    one part. `version` is that of the changes, by default the newest one. Raise `WritetimeError` if nothing in the lake
    can show this time.
    """
    if instant is None:
        return bucket_views(table)
    files, schema = changes_at(table, instant, version)
    return _views_until(table, by_bucket(files, table.buckets) or {0: []}, schema, instant)


def _views_until(
    table: LakeTable, files: Mapping[int, Sequence[DataFile]], schema: TableSchema, instant: int
) -> list[BucketView]:
    """Return the views of buckets by their files of changes. Nothing is taken from the state, which has no history."""
    storage, buckets = table.changes.storage, table.buckets

    def content(bucket: int) -> BucketContents:
        source = Source.of_bucket(storage, files[bucket], bucket, buckets)
        return BucketContents((), PendingChanges((source,), (), 0, buckets, table.cache))

    return [BucketView(each, content(each), schema, instant, True, table.view.storage) for each in sorted(files)]


def present_views(table: LakeTable, state: TableVersion, changes: TableVersion, now: int) -> list[BucketView]:
    """Return the parts of a table's rows at the present time (microseconds), by versions of its state and of its
    changes that were loaded in this order.
    """
    schema = table.schema(changes)
    return [
        BucketView(bucket, each, schema, now, False, table.view.storage)
        for bucket, each in contents(table, state, changes).items()
    ]


def virtual(table: LakeTable, as_of: int | None = None, unfit: Counter[str] | None = None) -> Iterator[pa.Table]:
    """Compute the rows of a table, one bucket at a time; see `bucket_views`, and `row_form.fit` for `unfit`."""
    for bucket in bucket_views(table, as_of):
        yield bucket.rows(unfit)


def time_now() -> int:
    """Return the time, in microseconds."""
    return time.time_ns() // 1000


def time_of_lake(table: LakeTable) -> int:
    """Return the time, in microseconds, that is written to the lake: by the store's clock if this machine's is far
    behind. Otherwise, rows would expire late, and those that had expired by another machine's clock would come back.
    """
    return time_now() + micros_behind(table.changes.storage)
