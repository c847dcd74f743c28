"""Writes files of the view in which each row has its place, and searches them for the rows to mark."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from writetime.core.arrow import one_chunk, pc
from writetime.core.extras import WhenUsed
from writetime.delta.buckets import ALL, buckets_of
from writetime.delta.deletion_vectors import read_vector
from writetime.delta.parquet import PLACE, PLACE_PARTS, WrittenFile, write_file
from writetime.delta.storage import Storage
from writetime.delta.versions import DataFile
from writetime.files.cache import Cache
from writetime.files.key_ranges import rows_at
from writetime.lake.views import BucketView
from writetime.merge.order import group_by
from writetime.row_events.changed_rows import AFTER, ChangedRows
from writetime.row_events.events import CREATE, DELETE, KINDS, fitted_rows

if TYPE_CHECKING:
    import pyroaring
else:
    # A base installation lists the commands, and lacks it.
    pyroaring = WhenUsed("pyroaring")

PREFIX = "placed-"
"""The beginning of the names of these files."""

THERE = "rows that were there"


def is_placed(file: DataFile) -> bool:
    """Return whether the rows of a file of the view have their places. Files of other engines have none."""
    return file.path.rpartition("/")[2].startswith(PREFIX)


def with_places(rows: pa.Table, places: Iterable[pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Return rows with their tokens, keys and positions in one column."""
    parts = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in places]
    return rows.append_column(PLACE, pa.StructArray.from_arrays(parts, PLACE_PARTS))


def write_placed(target: Storage, rows: pa.Table, bucket: int) -> list[WrittenFile]:
    """Write the result of `with_places` as one file, if there are any rows."""
    return [write_file(target, rows, bucket, None, PREFIX)] if rows.num_rows else []


@dataclass
class PlacedFiles:
    """The output of tasks: the new files, the rows of each file of the view that no longer count, the number of changed
    and removed rows, and the timestamps that do not fit (`row_form.fit`). `counts` has the counts of
    `ChangedRows.found`, and as `THERE` the number of rows that the view has although the batch creates them.
    """

    files: list[WrittenFile] = field(default_factory=list)
    marks: dict[str, "pyroaring.BitMap"] = field(default_factory=dict)
    gone: int = 0
    unfit: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def mark(self, several: "Iterable[tuple[str, pyroaring.BitMap]]") -> None:
        """Add rows of files that no longer count."""
        for path, rows in several:
            self.marks[path] = self.marks.get(path, pyroaring.BitMap()) | rows

    def add(self, other: "PlacedFiles") -> None:
        """Add the output of another task."""
        self.files += other.files
        self.mark(other.marks.items())
        self.gone += other.gone
        self.unfit.update(other.unfit)
        self.counts.update(other.counts)


@dataclass(frozen=True)
class WholeBucket:
    """Write all rows of one bucket, with their places or without."""

    view: BucketView
    with_places: bool

    def run(self) -> PlacedFiles:
        """Run the task."""
        view, result = self.view, PlacedFiles()
        rows = fitted_rows(view.contents.merged(view.schema), view.schema, view.as_of, result.unfit)
        result.counts[AFTER] = len(rows.tokens)
        if self.with_places:
            placed = with_places(rows.values, (rows.tokens, rows.keys, rows.positions))
            result.files = write_placed(view.target, placed, view.bucket)
        elif len(rows.tokens):
            result.files = [write_file(view.target, rows.values, view.bucket, None)]
        return result


@dataclass(frozen=True)
class Refresh:
    """Write the rows that a batch changed or created, and find the places of the rows that it changed or removed.

    `files` are the files of the view that may have these rows. `counts_there`: search them for created rows, too.
    """

    rows: ChangedRows
    files: tuple[DataFile, ...]
    storage: Storage
    cache: Cache
    counts_there: bool = False

    def run(self) -> PlacedFiles:
        """Run the task."""
        result = PlacedFiles()
        for bucket, events in self.rows.found(result.unfit, result.counts):
            kinds = events["kind"]
            if self.counts_there:
                created = events.filter(pc.equal(kinds, KINDS[CREATE]))
                result.counts[THERE] += sum(len(rows) for _, rows in self._marks(created))
            old = events.filter(pc.not_equal(kinds, KINDS[CREATE]))
            result.gone += old.num_rows
            result.mark(self._marks(old))
            new = events.filter(pc.not_equal(kinds, KINDS[DELETE]))
            images = one_chunk(new["after"])
            values = pa.Table.from_arrays(images.flatten(), [field.name for field in images.type])
            placed = with_places(values, (new[name] for name in PLACE_PARTS))
            result.files.extend(write_placed(self.storage, placed, bucket))
        return result

    def _marks(self, events: pa.Table) -> Iterator[tuple[str, "pyroaring.BitMap"]]:
        """Yield for each file its rows of the events that counted until now, if it has any."""
        if not events.num_rows:
            return
        tokens, keys, positions = (one_chunk(events[name]) for name in PLACE_PARTS)
        places = rows_at(tokens, keys, positions)
        # Others need not be opened.
        owners = {ALL, *np.unique(buckets_of(tokens, self.rows.buckets)).tolist()}
        found = [
            (file, numbers, rows)
            for file in self.files
            if file.bucket in owners
            for numbers, rows in self.cache.read(self.storage, file, lambda decoded: decoded.numbers(places))
        ]
        # A search also finds static rows of the partitions.
        candidates = [
            pa.concat_arrays([own, *(rows.column(n) for _, _, rows in found)])
            for own, n in zip((tokens, keys, positions), PLACE_PARTS, strict=True)
        ]
        group, head, _ = group_by(candidates[0].to_numpy(), *candidates[1:])
        is_old = np.zeros(len(head), bool)
        is_old[group[: len(tokens)]] = True
        same = is_old[group[len(tokens) :]]
        start = 0
        for file, numbers, _ in found:
            end = start + len(numbers)
            rows = pyroaring.BitMap(numbers[same[start:end]].astype(np.uint32)) - read_vector(self.storage, file.vector)
            start = end
            if rows:
                yield file.path, rows
