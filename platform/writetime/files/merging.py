"""Merges files of one bucket, which is the unit of work of the lake."""

import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.core.errors import WritetimeError, plain_text, reason_of
from writetime.core.outages import kind_of
from writetime.delta.buckets import ALL, token_range
from writetime.delta.parquet import (
    HOT_LAYOUT,
    WrittenFile,
    split_by_bucket,
    uncompressed_size,
    without_empty,
    write_rows,
)
from writetime.delta.storage import Storage
from writetime.delta.versions import DataFile
from writetime.files.change_files import read_changes
from writetime.merge import merge
from writetime.schema.table import TableSchema

# Files are merged in portions of this size (bytes of Parquet), so that memory depends on the result and not on the
# input. In memory, a portion has at most eight times as many bytes, also of rows that compress well.
PORTION_BYTES = 64 << 20
_IN_MEMORY = 8

T = TypeVar("T")


class Runner(Protocol):
    """Runs tasks and returns their results in any order: the built-in `map`, or `in_spark(session)`.

    A task runs no later than its result is read, so callers read all results. The first error of a task is raised to
    the reader, and it is unknown which of the others ran; those of a `CaughtTask` all run. Callers repeat a step that
    failed. A task may also run again within one call: Spark repeats failed tasks as its configuration says, and its
    runner repeats all tasks of a `CaughtTask` if a process died with one of them.
    """

    def __call__(self, function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterable[Any]:
        """Apply the function to each task."""
        ...


@dataclass(frozen=True)
class CaughtTask:
    """Runs a function on a task. An error of a task is part of its result, so the other tasks continue."""

    function: Callable[[Any], Any]

    def __call__(self, task: Any) -> tuple[Any, Any, Exception | None]:
        """Return the task, and the result or the error of the function."""
        try:
            return task, self.function(task), None
        except Exception as e:
            if not isinstance(e, WritetimeError | OSError):
                # Between processes, the traceback is lost.
                e.add_note("".join(traceback.format_exception(e)))
            return task, None, sendable(e)


def sendable(error: Exception) -> Exception:
    """Return an error that can be sent to another process: the error itself, or another one with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        # The constructor of the error makes its text from other arguments.
        is_known = isinstance(error, WritetimeError | OSError)
        other = kind_of(error)(plain_text(error)) if is_known else RuntimeError(reason_of(error))
        for note in getattr(error, "__notes__", ()):
            other.add_note(note)
        return other
    return error


@dataclass(frozen=True)
class Source:
    """Files of one Delta table. If a range of tokens is given, only its rows are read from files of all buckets."""

    storage: Storage
    files: tuple[DataFile, ...]
    tokens: tuple[int, int] | None = None

    @classmethod
    def of_bucket(cls, storage: Storage, files: Iterable[DataFile], bucket: int, buckets: int) -> "Source":
        """Return the rows of one bucket, or all rows for `ALL`."""
        return cls(storage, tuple(files), None if bucket == ALL else token_range(bucket, buckets))

    def tokens_of(self, file: DataFile) -> tuple[int, int] | None:
        """Return the range of tokens to take from a file; None for all of its rows."""
        return self.tokens if file.bucket == ALL else None

    def size_of(self, file: DataFile) -> int:
        """Return the size of a file for portions: its bytes of Parquet, or an eighth of those of its rows in memory if
        this is more.
        """
        size = uncompressed_size(self.storage, file.path)
        if (tokens := self.tokens_of(file)) is not None:
            size = size * (tokens[1] - tokens[0] + 1) >> 64
        return max(file.size, size // _IN_MEMORY)


@dataclass(frozen=True)
class MergeTask:
    """Merge the files of one bucket, some buckets, or all buckets (`ALL`). Write the result to `target`, under names
    that begin with `prefix`. The result of some buckets becomes one file per bucket.
    """

    source: Source
    schema: TableSchema
    bucket: int
    buckets: int
    target: Storage
    prefix: str = ""

    def run(self) -> list[WrittenFile]:
        """Run the task. If nothing is left after the merge, write no file."""
        state = merge_files([self.source], self.schema)
        found = by_bucket_of_result(state, self.source, self.bucket, self.buckets)
        return [file for b, own in found for file in write_state(self.target, own, b, self.buckets, self.prefix)]


def by_bucket_of_result(rows: pa.Table, source: Source, bucket: int, buckets: int) -> Iterable[tuple[int, pa.Table]]:
    """Return the rows that a task made of a source, with the bucket of their file: those of a part of `ALL` by bucket.
    One file of such a part could be as large as each of those merged, so they would be merged for ever.
    """
    is_part = bucket == ALL and source.tokens is not None
    return split_by_bucket(rows, buckets) if is_part else [(bucket, rows)]


def write_state(target: Storage, state: pa.Table, bucket: int, buckets: int, prefix: str = "") -> list[WrittenFile]:
    """Write a part of the state, like `write_rows`."""
    return write_rows(target, without_empty(state), bucket, buckets, prefix, layout=HOT_LAYOUT)


def merge_files(
    sources: Iterable[Source],
    schema: TableSchema,
    select: Callable[[pa.Table], pa.Table] | None = None,
    start: pa.Table | None = None,
) -> pa.Table:
    """Merge all files of these sources, each filtered by `select`, and a merged table if there is one. Memory depends
    on the size of the result.
    """
    state = merge([], schema) if start is None else start
    found = ((source, file) for source in sources for file in source.files)
    for portion in portions(found, lambda each: each[0].size_of(each[1])):
        files = ((source.storage, file.path, source.tokens_of(file)) for source, file in portion)
        tables = read_changes(files, change_schema(schema))
        state = merge([state, *(map(select, tables) if select else tables)], schema)
    return state


def portions(items: Iterable[T], size_of: Callable[[T], int], most: int | None = None) -> Iterator[list[T]]:
    """Yield items in groups, in their order. A group has up to `most` bytes (default `PORTION_BYTES`), or one larger
    item.
    """
    most = PORTION_BYTES if most is None else most
    portion: list[T] = []
    size = 0
    for item in items:
        if portion and size + size_of(item) > most:
            yield portion
            portion, size = [], 0
        portion.append(item)
        size += size_of(item)
    if portion:
        yield portion
