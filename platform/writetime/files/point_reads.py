"""Reads the parts of files that a batch of row events or a look-up needs, through the cache of decoded files. These are
ranges of tokens, some places, and the places where data expires.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.delta import buckets
from writetime.delta.parquet import conform, uncompressed_size
from writetime.delta.versions import DataFile
from writetime.files.cache import Cache
from writetime.files.decoded import Decoded
from writetime.files.key_ranges import KeyRanges, TokenRange, are_rows, joined, places_of
from writetime.files.merging import Source, portions
from writetime.merge import merge
from writetime.schema.table import TableSchema

Read = Callable[[Source, DataFile], list[pa.RecordBatch]]


def merge_tokens(
    sources: Iterable[Source], schema: TableSchema, wanted: TokenRange, cache: Cache, start: pa.Table | None = None
) -> pa.Table:
    """Merge the rows of files with tokens in a range, and a merged table if there is one."""

    def read(source: Source, file: DataFile) -> list[pa.RecordBatch]:
        first, last = source.tokens_of(file) or (wanted.first, wanted.last)
        first, last = max(first, wanted.first), min(last, wanted.last)
        return cache.read(source.storage, file, lambda decoded: decoded.between(first, last))

    return _merge(sources, schema, read, start)


def merge_places(
    sources: Iterable[Source], schema: TableSchema, places: KeyRanges, cache: Cache, start: pa.Table | None = None
) -> pa.Table:
    """Merge the entries of files at some places, and a merged table if there is one. The result is the complete merge
    at these places, with the static rows and the deletions that reach them. It may have parts of other rows.
    """

    def read(source: Source, file: DataFile) -> list[pa.RecordBatch]:
        own = places.within(source.tokens_of(file))
        return cache.read(source.storage, file, lambda decoded: decoded.rows(own)) if len(own.tokens) else []

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
    found = 0.0
    for storage, file, own, size in parts:
        if len(own.tokens):
            found += cache.read(storage, file, partial(Decoded.count, places=own)) * size / max(file.rows, 1)
    return round(found)


def first_places(sources: Iterable[Source], places: KeyRanges, count: int, cache: Cache) -> KeyRanges:
    """Return the first places of whole partitions, with at most about `count` rows of each file. If no file has more
    rows of a partition, the partition stays whole.
    """
    for source in sources:
        for file in source.files:
            places = cache.read(source.storage, file, partial(Decoded.narrowed, places=places, count=count))
    return places


def expiring_places(sources: Iterable[Source], after: int, until: int, cache: Cache) -> KeyRanges:
    """Return the places where data expires in `after` < t <= `until` (seconds), and perhaps other places."""

    def placed(batch: pa.RecordBatch) -> KeyRanges:
        # All of them are rows or static rows, which have no end.
        table = pa.Table.from_batches([batch]).select(["kind", "token", "key", "position"])
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
    batches = (batch for source in sources for file in source.files for batch in read(source, file))
    for portion in portions(batches, lambda batch: batch.nbytes):
        state = merge([state, *_conformed(portion, change_schema(schema))], schema)
    return state


def _conformed(batches: Iterable[pa.RecordBatch], wanted: pa.Schema) -> Iterator[pa.Table]:
    """Yield batches of the same fields as one table, so that it is conformed once."""
    alike: dict[pa.Schema, list[pa.RecordBatch]] = {}
    for batch in batches:
        alike.setdefault(batch.schema, []).append(batch)
    for several in alike.values():
        yield conform(pa.Table.from_batches(several).combine_chunks(), wanted, "a file of changes")
