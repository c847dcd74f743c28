"""Refreshes the compacted view. It writes the rows that changed since the last refresh, and marks their old versions.

A refresh is a batch of the view (`lake.projection`), with the rows that `row_events.changed_rows` finds.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakKeyDictionary

from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import reason_of
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.buckets import ALL
from writetime.delta.deletion_vectors import read_vector, write_vectors
from writetime.delta.parquet import Unreadable, WrittenFile, deleted_if_refused
from writetime.delta.store_clock import require_right_clock
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import DataFile, TableVersion
from writetime.files.merging import Runner
from writetime.lake.projection import VIEW, EventBatch, Position, TooLate, as_of_next
from writetime.lake.state import generation_of
from writetime.lake.table import LakeTable, created_of, view_schema
from writetime.lake.view_retention import DUE_SECONDS, STREAM_HOURS, TRIMMED, is_trim_due, trim_view
from writetime.lake.views import present_views, time_of_lake
from writetime.row_events.changed_rows import ChangedRows, next_rows, reshaped
from writetime.view.packing import pack
from writetime.view.placed_rows import PlacedFiles, Refresh, WholeBucket, is_placed

TRIM_EVERY = 64
"""The number of refreshes after which one also deletes replaced files, if this is not due sooner."""

TRIMS_AT: WeakKeyDictionary[BucketedTable, float] = WeakKeyDictionary()
"""The time from which a view is trimmed again after a failure (monotonic seconds)."""

MARKED = "rows marked"
"""The name of the number of rows that a refresh marks."""

_log = logging.getLogger(__name__)


class Staged(Protocol):
    """Checks new files before they are committed."""

    def __call__(self, files: Sequence[WrittenFile], *, whole: bool) -> None:
        """Raise if the files must not be committed. `whole`: they have all rows of the view."""
        ...


@dataclass(frozen=True)
class Refreshed:
    """The result of a refresh: the rows of the view afterwards, those that it wrote, those that it marked in other
    files, the files that it packed, and whether it wrote all rows.
    """

    rows: int
    written: int
    marked: int
    packed: int
    whole: bool


class _Whole(Exception):
    """All rows of the view must be written. The text is the reason."""


@dataclass(frozen=True)
class _Opened:
    """The versions of a table's parts that a refresh reads.

    They are opened in this order: the state never holds more than the changes that are read after it. `has_vectors`:
    the view is to have deletion vectors.
    """

    has_vectors: bool
    before: TableVersion
    state: TableVersion
    changes: TableVersion

    @property
    def last(self) -> Position | None:
        return VIEW.position(self.before)

    @property
    def unchanged(self) -> Refreshed:
        return Refreshed(self.before.rows, 0, 0, 0, False)


def refresh(
    settings: Settings,
    table: LakeTable,
    run: Runner = map,
    staged: Staged | None = None,
    unfit: Counter[str] | None = None,
    *,
    counts: Counter[str] | None = None,
    whole: bool = False,
) -> Refreshed:
    """Bring the compacted view up to date, in one commit: (1) open the versions, (2) write the rows that changed, or
    all, (3) let `staged` check the files, (4) delete replaced files if this is due, (5) commit, (6) pack the view's
    files if this is worth it.

    Args:
        settings: `lake.view` decides whether the view has deletion vectors, or all rows are written each time that one
            has changed.
        table: the table.
        run: runs the tasks.
        staged: is called with the new files, and whether they are the whole view, before they are committed; if it
            raises, the view stays as it was, and these files are deleted.
        unfit: as in `row_form.to_micros`, for the rows that are written. It is complete when `staged` is called.
        counts: gets the counts of `PlacedFiles`, and as `MARKED` the number of rows that are marked. It is complete
            when `staged` is called. The view is then also searched for created rows, which costs as much as marking
            rows.
        whole: write all rows again.

    Raises:
        Conflict: another process changed the view meanwhile: run this again.
    """
    has_vectors = settings.lake.view == "vectors"
    opened = _Opened(has_vectors, table.view.load(), table.state.load(), table.changes.load())
    if generation_of(opened.state) != generation_of(opened.changes):
        # Landing is about to rebuild the state.
        return opened.unchanged
    wanted, created = view_schema(table.schema(opened.changes)), created_of(opened.before)
    before, begins = VIEW.with_fields(table, opened.before, wanted, created)
    opened = replace(opened, before=before)
    last = opened.last
    number = last.batch.sequence + 1 if last else 1
    batch = EventBatch(generation_of(opened.changes), number, time_of_lake(table))
    whole = whole or begins is not None
    found, batch, whole = _write(table, opened, batch, run, whole=whole, searches=counts is not None)
    if unfit is not None:
        unfit.update(found.unfit)
    if counts is not None:
        counts.update(found.counts + Counter({MARKED: sum(map(len, found.marks.values()))}))
    is_new = not last or last.changes.version != opened.changes.version or batch.as_of < last.batch.as_of
    # Without deletion vectors, the upkeep alone moves a view on.
    if not whole and not found.files and not found.marks and not (is_new and has_vectors):
        # The program that committed the last batch may have been killed before it published it.
        VIEW.publish(table)
        return opened.unchanged
    if staged:
        # Only now, even if another process was first: a store may report a conflict although it made the commit.
        with deleted_if_refused(table.view.storage, found.files):
            staged(found.files, whole=whole)
    change = replace(_change(table, opened, found, whole=whole), fields=begins)
    packed = _commit(table, opened, batch, change, run)
    written = sum(file.rows for file in found.files)
    return Refreshed(
        written if whole else opened.before.rows + written - found.gone, written, found.gone, packed, whole
    )


def _write(
    table: LakeTable, opened: _Opened, batch: EventBatch, run: Runner, *, whole: bool, searches: bool
) -> tuple[PlacedFiles, EventBatch, bool]:
    """Write the rows that changed, or all. Return their files with the batch, and whether they are all rows. A view
    without deletion vectors is written whole if a row may have changed, or if it is as of a later time.
    """
    if not whole:
        try:
            later, rows = _changed_rows(table, opened, batch)
            if opened.has_vectors:
                return _write_changed(table, opened, rows, run, searches=searches), later, False
            if not rows and opened.last and later.as_of >= opened.last.batch.as_of:
                return PlacedFiles(), later, False
        except (_Whole, TooLate, Unreadable, FileNotFoundError) as e:
            if opened.before.files:
                _log.info("%s: the view is written whole: %s", table.name, e)
    buckets = present_views(table, opened.state, opened.changes, batch.as_of)
    tasks = [WholeBucket(each, opened.has_vectors) for each in buckets]
    return _joined(run(WholeBucket.run, tasks)), batch, True


def _commit(table: LakeTable, opened: _Opened, batch: EventBatch, change: TableChange, run: Runner) -> int:
    """Delete files that earlier refreshes replaced, if this is due. Commit the files of this one, and pack the view's.
    Return the number of packed files. A vacuum alone deletes files of a view without deletion vectors.
    """
    trimmed = opened.before.transaction(TRIMMED) or 0
    also: dict[str, int] = {}
    trims = change.vectors and (batch.sequence % TRIM_EVERY == 0 or is_trim_due(trimmed))
    if trims := trims and time.monotonic() >= TRIMS_AT.get(table.view, 0.0):
        with _logged(table):
            require_right_clock(table.view.storage)
            # So that no snapshot of Iceberg names the files.
            VIEW.publish_files(table)
            also[TRIMMED] = trim_view(table, trimmed)
    position = Position(batch, opened.changes.commit_id, opened.state.commit_id)
    VIEW.commit(table, opened.before, change, position, also)
    packed = pack(table, run) if change.vectors else 0
    if trims:
        with _logged(table):
            require_right_clock(table.view.storage)
            table.view.trim_log(table.view.load().version, STREAM_HOURS, STREAM_HOURS)
    return packed


@contextmanager
def _logged(table: LakeTable) -> Iterator[None]:
    """Log why files cannot be deleted, as in a store that refuses this. The view continues, and the files stay."""
    try:
        yield
    except Exception as e:
        TRIMS_AT[table.view] = time.monotonic() + DUE_SECONDS
        _log.warning("%s: what its view has replaced cannot be deleted: %s", table.name, reason_of(e))


def _changed_rows(table: LakeTable, opened: _Opened, batch: EventBatch) -> tuple[EventBatch, list[ChangedRows]]:
    """Return the batch, as of the time of `as_of_next`, with the rows that may have changed since the last refresh.

    Raises:
        _Whole: all rows must be written.
        TooLate, Unreadable, FileNotFoundError: the rows as of the last refresh no longer exist, or are damaged.
    """
    before, last = opened.before, opened.last
    if last is None:
        raise _Whole("it was not written with deletion vectors")
    if last.batch.generation != batch.generation or created_of(before) != created_of(opened.changes):
        raise _Whole("the table began a generation")
    if before.has_vectors and not opened.has_vectors:
        raise _Whole("lake.view was another")
    unknown = [file for file in before.files if not is_placed(file)] if opened.has_vectors else []
    if unknown:
        raise _Whole(
            f"the rows of {unknown[0].path} have no places: lake.view was another, or another program wrote it"
        )
    if not VIEW.is_ours(before):
        raise _Whole("another program changed its files or deletion vectors")
    batch = replace(batch, as_of=as_of_next(last, batch.as_of))
    rows = next_rows(table, last, opened.state, opened.changes, batch)
    if any(reshaped(each.schema_before, each.schema) for each in rows):
        raise _Whole("a column was dropped, or its type changed")
    return batch, rows


def _write_changed(
    table: LakeTable, opened: _Opened, rows: Iterable[ChangedRows], run: Runner, *, searches: bool
) -> PlacedFiles:
    """Write the rows that changed since the last refresh. Raise `_Whole` if the view lacks some of their old versions,
    or an error as `_changed_rows`.
    """
    storage, cache = table.view.storage, table.cache
    tasks = [Refresh(each, _files_of(opened.before, each.bucket), storage, cache, searches) for each in rows]
    done: list[PlacedFiles] = []
    # Of tasks that ended before one failed, too.
    with deleted_if_refused(table.view.storage, (file for each in done for file in each.files)):
        done.extend(run(Refresh.run, tasks))
        found = _joined(done)
        marked = sum(map(len, found.marks.values()))
        if marked != found.gone:
            raise _Whole(f"it has {marked} of the {pluralize(found.gone, 'row')} that were changed or removed")
    return found


def _files_of(version: TableVersion, bucket: int) -> tuple[DataFile, ...]:
    return tuple(file for file in version.files if bucket == ALL or file.bucket in {bucket, ALL})


def _joined(several: Iterable[PlacedFiles]) -> PlacedFiles:
    found = PlacedFiles()
    for each in several:
        found.add(each)
    return found


def _change(table: LakeTable, opened: _Opened, found: PlacedFiles, *, whole: bool) -> TableChange:
    """Return the change to commit. A file whose rows are all marked leaves the view."""
    before, storage = opened.before, table.view.storage
    if whole:
        return TableChange(before.files, found.files, vectors=opened.has_vectors)
    touched = [before.by_path[path] for path in found.marks]
    marked = {file.path: read_vector(storage, file.vector) | found.marks[file.path] for file in touched}
    empty = [file for file in touched if len(marked[file.path]) == file.rows]
    for file in empty:
        del marked[file.path]
    vectors = write_vectors(storage, marked)
    marks = [(before.by_path[path], vector) for path, vector in vectors.items()]
    return TableChange(empty, found.files, marks, vectors=True)
