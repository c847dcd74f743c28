"""The rows of streams become batches; no server is needed.

Oracle: the rows that the test put into its streams.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa
import pytest
from cassandra.cluster import NoHostAvailable

from tests.support.generate import SEED
from tests.support.log_pages import Answer
from writetime.schema.cql import parse_table
from writetime.schema.table import TableSchema
from writetime.scylla_cdc import log as L
from writetime.scylla_cdc import pieces
from writetime.scylla_cdc.column_history import History
from writetime.scylla_cdc.deltas import Deltas
from writetime.scylla_cdc.findings import IMAGE_DISAGREES
from writetime.scylla_cdc.images import CheckedDeltas
from writetime.scylla_cdc.log import first_uuid, log_table
from writetime.scylla_cdc.pages import Pages, Reading
from writetime.scylla_cdc.pieces import StreamPiece, read_pieces

pytestmark = pytest.mark.long

START = 1_790_000_000_000_000
TABLE = parse_table("CREATE TABLE ks.t (k int, c int, v int, PRIMARY KEY (k, c))")
COLUMNS = Deltas(TABLE, History(TABLE, log_table(TABLE))).columns


class Streams:
    """In place of the database: the pages of each stream."""

    def __init__(self, *streams: list[pa.RecordBatch]) -> None:
        self._streams = {piece(i).stream: [of_stream(i, page) for page in pages] for i, pages in enumerate(streams)}
        self.asked: list[int] = []
        """The number of streams of each query."""

    def prepare(self, query: str) -> None:
        del query

    def start(self, query: None, values: Sequence[Any]) -> Answer:
        del query
        streams = values[0] if isinstance(values[0], list) else [values[0]]
        self.asked.append(len(streams))
        return Answer([NO_ROWS, *(page for stream in streams for page in self._streams[stream])])

    def rows(self) -> pa.Table:
        return pa.Table.from_batches([page for pages in self._streams.values() for page in pages], NO_ROWS.schema)


class Sizes:
    """Records of each batch how many rows it has, and whether it begins with a group."""

    table: TableSchema = TABLE
    columns = COLUMNS

    def __init__(self) -> None:
        self.found: list[tuple[int, bool]] = []

    def convert(self, page: pa.RecordBatch) -> pa.RecordBatch:
        self.found.append((page.num_rows, page[L.SEQUENCE][0].as_py() == bytes(4)))
        return page


def group(number: int, *operations: int, v: int | None = 5) -> pa.RecordBatch:
    """A group of one write; an insert has no value, an image has one."""
    rows = []
    for i, operation in enumerate(operations):
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {L.STREAM: bytes(16), L.TIME: first_uuid(START + number).bytes, L.SEQUENCE: i.to_bytes(4, "big")}
        row |= {L.OPERATION: bytes([operation]), "k": (1).to_bytes(4, "big"), "c": number.to_bytes(4, "big")}
        row["v"] = None if operation == L.INSERT or v is None else v.to_bytes(4, "big")
        row[L.END_OF_BATCH] = b"\1" if i == len(operations) - 1 else None
        rows.append(row)
    return pa.record_batch({c: pa.array([row[c] for row in rows], pa.binary()) for c in COLUMNS})


NO_ROWS = group(0, L.INSERT).slice(1)


def of_stream(number: int, page: pa.RecordBatch) -> pa.RecordBatch:
    at = page.schema.get_field_index(L.STREAM)
    return page.set_column(at, L.STREAM, pa.repeat(pa.scalar(piece(number).stream), page.num_rows))


def paged(rows: pa.RecordBatch, *cuts: int) -> list[pa.RecordBatch]:
    return [rows.slice(a, b - a) for a, b in pairwise([0, *cuts, rows.num_rows])]


def piece(number: int = 0) -> StreamPiece:
    return StreamPiece(number.to_bytes(16, "big"), START, START + 1_000_000)


def test_a_preimage_and_its_insert_are_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, an insert without values and without a preimage is one of a new row."""
    monkeypatch.setattr(pieces, "BATCH_ROWS", 1)
    history = History(TABLE, log_table(TABLE))
    found: Counter[str] = Counter()
    checked = CheckedDeltas(TABLE, history, found, [], 0)
    pages = paged(group(1, L.PREIMAGE, L.INSERT, L.POSTIMAGE), 1)
    changes = list(read_pieces(cast("Pages", Streams(pages)), checked, [piece()], 1))
    assert (sum(c.num_rows for c in changes), found[IMAGE_DISAGREES]) == (1, 0)


def test_batches_have_whole_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(SEED)
    monkeypatch.setattr(pieces, "BATCH_ROWS", 10)
    # So streams do not share queries.
    monkeypatch.setattr(pieces, "PAGE_ROWS", 1)
    streams = []
    for _ in range(5):
        rows = pa.concat_batches([group(i, *[L.INSERT] * rng.choice([1, 2, 30])) for i in range(20)])
        streams.append(paged(rows, *sorted(rng.sample(range(1, rows.num_rows), 15))))
    sizes, database = Sizes(), Streams(*streams)
    batches = list(read_pieces(cast("Pages", database), sizes, [piece(i) for i in range(5)], 2))
    assert pa.Table.from_batches(batches) == database.rows()
    assert all(begins for _, begins in sizes.found)
    assert len(sizes.found) > 20


def test_few_large_rows_are_a_batch_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 10,000 rows may be larger than Arrow's arrays of values."""
    pages = [group(number, L.INSERT) for number in range(20)]
    monkeypatch.setattr(pieces, "BATCH_BYTES", 3 * pages[0].nbytes)
    sizes = Sizes()
    list(read_pieces(cast("Pages", Streams(pages[:10], pages[10:])), sizes, [piece(0), piece(1)], 1))
    assert sizes.found == [*[(3, True)] * 6, (2, True)]


def read(database: Streams, streams: int) -> tuple[pa.Table, Counter[bytes]]:
    """Return all rows, and the number of rows that were seen of each stream."""
    seen: Counter[bytes] = Counter()
    wanted = [piece(i) for i in range(streams)]
    batches = read_pieces(
        cast("Pages", database), Sizes(), wanted, 16, lambda piece, times: seen.update({piece.stream: len(times)})
    )
    return pa.Table.from_batches(batches, NO_ROWS.schema), seen


def test_streams_with_few_rows_share_queries() -> None:
    """Most of a thousand streams have no new rows in a window."""
    streams = [[group(i, L.INSERT)] if i % 7 == 0 else [] for i in range(1000)]
    database = Streams(*streams)
    found, seen = read(database, 1000)
    assert found == database.rows()
    assert seen == {piece(i).stream: 1 for i in range(0, 1000, 7)}
    assert len(database.asked) <= 16 + 984 / 50 + 1
    assert max(database.asked) == 50


def test_a_database_may_refuse_a_shared_query() -> None:
    """ScyllaDB does so with a server error, if `max_partition_key_restrictions_per_query` is smaller."""

    class Refused:
        def result(self) -> None:
            raise NoHostAvailable("unable to complete the operation", {})

    assert Reading(lambda _: Refused(), "SELECT ...").only_page() is None


def test_streams_with_many_rows_are_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """ScyllaDB reads a page of each stream for each page of a query with several streams."""
    rng = random.Random(SEED)
    monkeypatch.setattr(pieces, "PAGE_ROWS", 40)
    for _ in range(50):
        counts = [0 if rng.random() < 0.8 else rng.choice([1, 10, 200]) for _ in range(rng.randrange(1, 200))]
        rows = [pa.concat_batches([group(i, L.INSERT) for i in range(n)]) if n else NO_ROWS for n in counts]
        database = Streams(*([page] for page in rows))
        found, seen = read(database, len(counts))
        assert found.sort_by([(L.STREAM, "ascending"), (L.TIME, "ascending")]) == database.rows()
        assert seen == {piece(i).stream: n for i, n in enumerate(counts) if n}
        # Each stream is in one query, or in a shared one and then in one of its own.
        assert sum(database.asked) <= 2 * len(counts)


def test_many_streams_of_one_row_each_cost_as_much_per_row_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    row = group(1, L.INSERT)
    monkeypatch.setattr(pieces, "_whole", lambda reading, _: reading)
    monkeypatch.setattr(pieces, "STREAMS_PER_QUERY", 1)

    def seconds(streams: int) -> float:
        monkeypatch.setattr(pieces, "BATCH_ROWS", streams + 1)
        pages = Streams(*([row] for _ in range(streams)))
        began = time.process_time()
        list(read_pieces(cast("Pages", pages), Sizes(), [piece(i) for i in range(streams)], 16))
        return time.process_time() - began

    few, many = (min(seconds(n) for _ in range(3)) for n in (1_000, 16_000))
    assert many < 16 * 4 * few
