"""Reads of a table by pages, as `writetime verify` makes them: a ScyllaDB may cut them anywhere.

Oracle: the database: the rows that the test wrote.
"""

import random

import pytest
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import SimpleStatement

from tests.support.generate import SEED
from tests.support.scylla_server import new_name
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.row_events.compare import OrderedRows
from writetime.schema.system import read_schema
from writetime.verify.database_table import DatabaseTable

FIRST, LAST = -(1 << 63), (1 << 63) - 1
COLUMNS = ("k", "c", "s", "v")
# A ScyllaDB ends a page after as many deleted rows (`query_tombstone_page_limit`).
DELETED_ROWS_OF_PAGE = 10_000


def new_table(live: Settings, session: Session, alive: dict[int, int], deleted: dict[int, int]) -> str:
    """Make a table with a static value per partition: how many rows live in each, and how many deleted ones follow."""
    name = f"{live.cassandra.keyspace}.{new_name('p')}"
    session.execute(f"CREATE TABLE {name} (k int, c int, s int static, v int, PRIMARY KEY (k, c))", timeout=120)
    static = session.prepare(f"INSERT INTO {name} (k, s) VALUES (?, 1)")
    row = session.prepare(f"INSERT INTO {name} (k, c, v) VALUES (?, ?, 2)")
    deletion = session.prepare(f"DELETE FROM {name} WHERE k = ? AND c = ?")
    for statement, values in (
        (static, [(k,) for k in deleted]),
        (row, [(k, c) for k, count in alive.items() for c in range(count)]),
        (deletion, [(k, alive[k] + c) for k, count in deleted.items() for c in range(count)]),
    ):
        assert all(done for done, _ in execute_concurrent_with_args(session, statement, values))
    return name


def values(rows: OrderedRows) -> list[tuple[int | None, ...]]:
    return list(zip(*(rows.values[column].to_pylist() for column in COLUMNS), strict=True))


@pytest.mark.parametrize("page_rows", [2, 3, 7, 10, 100])
def test_no_row_is_skipped(live: Settings, session: Session, page_rows: int) -> None:
    """Even if a page ends with a partition's last row that lives."""
    r = random.Random(1000 * SEED + page_rows)
    sizes = {k: r.choice([0, 1, 2, 3, 10, 40]) for k in range(100)}
    alive = {k: r.randint(0, size) for k, size in sizes.items()}
    name = new_table(live, session, alive, {k: sizes[k] - alive[k] for k in sizes})
    query = SimpleStatement(f"SELECT {', '.join(COLUMNS)} FROM {name}", fetch_size=None)  # type: ignore[arg-type]
    expected = [tuple(row) for row in session.execute(query)]
    with connect(live) as compared:
        table = DatabaseTable(compared, read_schema(session, name), page_rows)
        assert values(table.rows(FIRST, LAST)) == expected
        first, in_parts = FIRST, []
        while first <= LAST:
            rows, end = table.first_rows(first, LAST, 50)
            in_parts += values(rows)
            first = end + 1
    assert in_parts == expected


def test_static_columns_are_no_row_beside_others(live: Settings, session: Session) -> None:
    """Even if a page ends within the deleted rows before them."""
    name = new_table(live, session, {1: 0, 2: 0}, dict.fromkeys((1, 2), DELETED_ROWS_OF_PAGE + 10))
    session.execute(f"INSERT INTO {name} (k, c, v) VALUES (1, 1000000, 3)")
    with connect(live) as compared:
        table = DatabaseTable(compared, read_schema(session, name))
        rows = table.rows(FIRST, LAST)
        again, times = table.timed_rows(rows.tokens.to_pylist())
    assert values(rows) == [(1, 1_000_000, 1, 3), (2, None, 1, None)]
    assert values(again) == values(rows)
    assert len(times) == len(rows.tokens)
