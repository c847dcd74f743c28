"""Reads the parts of files that a batch of row events or a look-up needs, through the cache of decoded files. These are
ranges of tokens, some places, and the places where data expires.
"""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.delta import buckets
from writetime.delta.parquet import conform, uncompressed_size
from writetime.delta.versions import DataFile
from writetime.files.cache import Cache
from writetime.files.key_ranges import KeyRanges, TokenRange, are_rows, joined, places_of
from writetime.files.merging import PORTION_BYTES, Source
from writetime.merge import merge
from writetime.schema.table import TableSchema

Read = Callable[[Source, DataFile], list[pa.RecordBatch]]


def merge_tokens(
    sources: Iterable[Source], schema: TableSchema, wanted: TokenRange, cache: Cache, start: pa.Table | None = None
) -> pa.Table:
    """Merge the rows of files with tokens in a range, and a merged table if there is one."""

    def read(source: Source, file: DataFile) -> list[pa.RecordBatch]:
        first, last = source.tokens_of(file) or (wanted.first, wanted.last)
        return cache.between(source.storage, file, max(first, wanted.first), min(last, wanted.last))

    return _merge(sources, schema, read, start)


def merge_places(
    sources: Iterable[Source], schema: TableSchema, places: KeyRanges, cache: Cache, start: pa.Table | None = None
) -> pa.Table:
    """Merge the entries of files at some places, and a merged table if there is one. The result is the complete merge
    at these places, with the static rows and the deletions that reach them. It may have parts of other rows.
    """

    def read(source: Source, file: DataFile) -> list[pa.RecordBatch]:
        return cache.rows(source.storage, file, places.within(source.tokens_of(file)))

    return _merge(sources, schema, read, start)


def size_at(sources: Iterable[Source], places: KeyRanges, cache: Cache) -> int:
    """Return about how large (bytes) the entries of files at some places are in memory, by the average entry of each
    file. If they are not larger than rows of one file may be (`MOST_ROW_BYTES`), the result may be too large.
    """
    parts = [
        (source.storage, file, places.within(source.tokens_of(file)), uncompressed_size(source.storage, file.path))
        for source in sources
        for file in source.files
    ]
    # A file has one entry of a row. Without a search, its number of entries at other places is not known.
    most = sum(len(own.tokens) * size / max(file.rows, 1) for _, file, own, size in parts)
    if most <= buckets.MOST_ROW_BYTES and are_rows(places):
        return round(most)
    return round(sum(cache.count(storage, file, own) * size / max(file.rows, 1) for storage, file, own, size in parts))


def first_places(sources: Iterable[Source], places: KeyRanges, count: int, cache: Cache) -> KeyRanges:
    """Return the first places of whole partitions, with at most about `count` rows of each file. If no file has more
    rows of a partition, the partition stays whole.
    """
    for source in sources:
        for file in source.files:
            places = cache.narrowed(source.storage, file, places, count)
    return places


def expiring_places(sources: Iterable[Source], after: int, until: int, cache: Cache) -> KeyRanges:
    """Return the places where data expires in `after` < t <= `until` (seconds), and perhaps other places."""

    def placed(batch: pa.RecordBatch) -> KeyRanges:
        # All of them are rows or static rows, which have no end.
        table = pa.table(
            [batch.column(name) for name in ("kind", "token", "key", "position")], ["kind", "token", "key", "position"]
        )
        return places_of(table.append_column("end", pa.nulls(len(table), pa.binary())))

    found = [
        placed(batch).within(source.tokens_of(file))
        for source in sources
        for file in source.files
        for batch in cache.expiring(source.storage, file, after, until)
    ]
    return joined(found)


def anything_expires(sources: Iterable[Source], after: int, until: int, cache: Cache) -> bool:
    """Return whether data expires in `after` < t <= `until` (seconds)."""
    return any(cache.expiring(source.storage, file, after, until) for source in sources for file in source.files)


def next_expiry(sources: Iterable[Source], after: int, cache: Cache) -> int | None:
    """Return the first second after this one at which data expires, or earlier; None if there is none."""
    found = [cache.next_expiry(source.storage, file, after) for source in sources for file in source.files]
    return min((second for second in found if second is not None), default=None)


def _merge(sources: Iterable[Source], schema: TableSchema, read: Read, start: pa.Table | None) -> pa.Table:
    state = merge([], schema) if start is None else start
    portion: list[pa.Table] = []
    size = 0
    for table in _tables(sources, change_schema(schema), read):
        portion.append(table)
        size += table.nbytes
        if size > PORTION_BYTES:
            state = merge([state, *portion], schema)
            portion, size = [], 0
    return merge([state, *portion], schema)


def _tables(sources: Iterable[Source], wanted: pa.Schema, read: Read) -> Iterator[pa.Table]:
    alike: dict[pa.Schema, list[pa.RecordBatch]] = {}
    size = 0
    for source in sources:
        for file in source.files:
            for batch in read(source, file):
                alike.setdefault(batch.schema, []).append(batch)
                size += batch.nbytes
            if size > PORTION_BYTES:
                yield from _conformed(alike, wanted)
                alike, size = {}, 0
    yield from _conformed(alike, wanted)


def _conformed(alike: dict[pa.Schema, list[pa.RecordBatch]], wanted: pa.Schema) -> Iterator[pa.Table]:
    """Yield batches of the same fields as one table, so that it is conformed once."""
    for batches in alike.values():
        yield conform(pa.Table.from_batches(batches).combine_chunks(), wanted, "a file of changes")
