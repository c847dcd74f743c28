"""Restored tables are compared with the lake: cost, memory, and rows that change meanwhile. The database is a stand-in
that has rows which a test names; tests/restore/test_into.py compares with a real one.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.made import SCHEMA, add, cell, new_table, write
from writetime.core.config import Settings, load
from writetime.lake.table import LakeTable
from writetime.lake.views import bucket_views, views_at
from writetime.merge import merge
from writetime.row_events.compare import OrderedRows
from writetime.schema.cql import parse_table
from writetime.verify import restored
from writetime.verify.cell_times import timed_columns, timed_schema
from writetime.verify.compared_rows import between
from writetime.verify.lost_deletions import LakeRows, rows_with_entries
from writetime.verify.restored import RestoredReport, verify_restored

ROWS = 400


class EmptyTable:
    """A table of the database without rows, which answers as if it had many."""

    limit = 7
    timed = timed_columns(SCHEMA, of_parts=True)

    def __init__(self, *_: Any, **__: Any) -> None:
        none = rows_with_entries(merge([], SCHEMA), SCHEMA, 0).rows
        values = none.values
        for timed in self.timed:
            values = values.append_column(timed.time, pa.array([], pa.int64()))
            values = values.append_column(timed.expiry, pa.array([], pa.int64()))
        self._none = OrderedRows(
            values, none.tokens, none.keys, none.positions, within={each.expiry: 61 for each in self.timed}
        )

    def first_rows(self, first: int, last: int, limit: int) -> tuple[OrderedRows, int]:
        assert limit >= self.limit
        return self._none, min(last, first + (1 << 57))

    def rows(self, first: int, last: int) -> OrderedRows:
        return between(self._none, first, last)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many changes each decoding of rows had. The database is an `EmptyTable`, and nobody waits."""
    counts: list[int] = []

    def counted(state: pa.Table, schema: Any, as_of: int) -> LakeRows:
        counts.append(len(state))
        return rows_with_entries(state, schema, as_of)

    @contextmanager
    def connect(_: Settings) -> Iterator[None]:
        yield None

    monkeypatch.setattr(restored, "rows_with_entries", counted)
    monkeypatch.setattr(restored, "connect", connect)
    monkeypatch.setattr(restored, "DatabaseTable", EmptyTable)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return counts


def _compared(table: LakeTable, *, has_others: bool = False) -> RestoredReport:
    return verify_restored(load(), bucket_views(table), SCHEMA, table.buckets, has_others=has_others)


def test_the_cost_follows_the_rows(tmp_path: Path, decoded: list[int]) -> None:
    table = new_table(tmp_path)
    add(table, [write(i, 0, i, v="v") for i in range(ROWS)], 0)
    report = _compared(table)
    assert report.rows == report.differing == ROWS
    # Once, and twice again because they differ.
    assert sum(decoded) == 3 * ROWS
    assert max(decoded) < ROWS // 4
    decoded.clear()
    assert _compared(table, has_others=True).newer == ROWS
    assert sum(decoded) == ROWS


def test_a_cell_that_expires_between_the_reads_is_no_difference(
    tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path)
    now = 1_700_000_000
    expiring = {**write(1, 0, 1), "v": {**cell("v", 1), "ttl": 10, "deletion_time": now}}
    add(table, [{**expiring, "marker": {"write_time": 1, "ttl": 10, "expiry": now}}], 0)
    clock = [now - 1]
    monkeypatch.setattr(restored, "time_now", lambda: clock[0] * 1_000_000)
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + 1) if seconds >= 1 else None)
    report = verify_restored(load(), views_at(table, now * 10**6), SCHEMA, table.buckets, has_others=False)
    assert (report.rows, report.differing) == (0, 0)
    assert len(decoded) > 1


def test_names_of_times_are_those_of_no_column() -> None:
    columns = 'k int PRIMARY KEY, v int, "writetime(v)" int, "expiry(v)" int, "writetime(v)\'" int'
    schema = parse_table(f"CREATE TABLE ks.t ({columns})")
    found = timed_schema(schema, timed_columns(schema, of_parts=True))
    names = [column.name for column in found.columns]
    assert len(names) == len(set(names)) == 5 + 2 * 4
