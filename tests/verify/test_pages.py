"""Pages of a table that lack rows, as those of a ScyllaDB 2026.1; no server is needed."""

import re
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from writetime.schema.serialise import partition_key
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native
from writetime.storage.kernel.primitives import token
from writetime.verify.database_table import DatabaseTable

INT = Native("int")
SCHEMA = TableSchema("k", "t", (Column("k", INT),), (Column("c", INT),), (Column("s", INT),), ())
FIRST, LAST = -(1 << 63), (1 << 63) - 1


def number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def token_of(row: tuple[bytes, ...]) -> int:
    return token(partition_key(row[:1]))


class Pages:
    """The pages of a query. After a page that ends with its partition, the next one has one row, and is the last."""

    def __init__(self, rows: list[tuple[bytes, ...]], size: int) -> None:
        self._rows, self._size = rows, size
        self._page = rows[:size]
        self._read = len(self._page)

    def result(self) -> SimpleNamespace:
        columns = [pa.array([row[i] for row in self._page], pa.binary()) for i in range(3)]
        return SimpleNamespace(current_rows=[pa.RecordBatch.from_arrays(columns, ["k", "c", "s"])])

    @property
    def has_more_pages(self) -> bool:
        return self._read < len(self._rows)

    def start_fetching_next_page(self) -> None:
        last = self._page[-1]
        self._page = self._rows[self._read : self._read + self._size]
        self._read += self._size
        if self._page[0][0] != last[0]:
            self._page, self._read = self._page[:1], len(self._rows)


@pytest.mark.parametrize("in_partition", [1, 2, 3, 5, 8, 20])
@pytest.mark.parametrize("size", [2, 5, 10, 40])
def test_no_row_is_skipped(monkeypatch: pytest.MonkeyPatch, size: int, in_partition: int) -> None:
    keys = sorted((number(k) for k in range(30)), key=lambda key: token_of((key,)))
    stored = [(key, number(c), number(0)) for key in keys for c in range(in_partition)]
    queries: list[str] = []

    def execute_async(query: str, **_: object) -> Pages:
        queries.append(query)
        first, last = map(int, re.findall(r"[<>]= (-?\d+)", query))
        return Pages([row for row in stored if first <= token_of(row) <= last], size)

    monkeypatch.setattr("writetime.verify.database_table.read_schema", lambda *_: SCHEMA)
    session: Any = SimpleNamespace(
        execute_async=execute_async,
        execution_profile_clone_update=lambda *_, **__: None,
        cluster=SimpleNamespace(auth_provider=None),
    )
    table = DatabaseTable(session, SCHEMA)
    rows = table.rows(FIRST, LAST)
    assert rows.values["c"].to_pylist() == [int.from_bytes(row[1], "big") for row in stored]
    assert rows.keys.to_pylist() == [partition_key(row[:1]) for row in stored]
    assert len(table.rows(LAST, LAST).tokens) == 0
    # Most partitions are not read twice.
    assert len(queries) <= 2 * len(stored) // size + 2
