"""Nested values in the Iceberg tables of a view and of row events, also after a user-defined type got a field.

Oracle: the rows that each reader returns are those that the test has written.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.iceberg_readers import READERS, Reader
from tests.support.made import add, settings_at, write
from writetime.delta.bucketed_table import BucketedTable
from writetime.lake.table import create_table
from writetime.row_events.stream import extend
from writetime.schema.cql import parse_table
from writetime.schema.table import TableSchema
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.slow

TYPES = {
    "numbers": "frozen<list<int>>",
    "tags": "frozen<set<text>>",
    "counts": "frozen<map<text, bigint>>",
    "keyed": "frozen<map<double, int>>",
    "pair": "frozen<tuple<int, text>>",
    "place": "frozen<address>",
    "near": "vector<float, 3>",
    "span": "duration",
    "deep": "frozen<map<text, frozen<list<frozen<tuple<int, frozen<address>>>>>>>",
    "times": "frozen<list<timestamp>>",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


def schema_of(address: str) -> TableSchema:
    columns = ", ".join(f"{name} {cql}" for name, cql in TYPES.items())
    return parse_table(
        f"CREATE TYPE shop.address ({address}); "
        f"CREATE TABLE shop.items (id int, n int, {columns}, PRIMARY KEY (id, n));"
    )


def values(number: int, city: str | None) -> Row:
    """The values of a row, of which some are null or empty. The type of addresses gets its last field later."""
    place = {"street": f"street {number}", "zip": number, "city": city}
    found = {
        "numbers": list(range(number % 3)),
        "tags": [f"t{number}", "é"],
        "counts": [("a", number), ("b", -number)],
        "keyed": [(0.5, number)],
        "pair": {"_1": None if number % 2 else number, "_2": f"x{number}"},
        "place": place,
        "near": [number / 2, 0.0, -1.0],
        "span": {"months": 1, "days": number, "nanoseconds": -number},
        "deep": [("k", [{"_1": number, "_2": place}, {"_1": None, "_2": None}]), ("none", [])],
        "times": [1000 * number, 0],
    }
    return {name: value for i, (name, value) in enumerate(found.items()) if (number + i) % 5}


def plain(value: Any) -> Any:
    """The same for each engine: entries of maps as lists, times in milliseconds, addresses without a null city."""
    match value:
        case datetime():
            return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
        case dict():
            parts = {n: plain(part) for n, part in sorted(value.items()) if (n, part) != ("city", None)}
            return [*parts.values()] if [*parts] == ["key", "value"] else parts
        case list() | tuple():
            return list(map(plain, value))
    return value


class Written:
    """The table, its rows, and its events."""

    def __init__(self, folder: Path) -> None:
        self.settings = settings_at(folder, buckets=2, iceberg=True)
        self.schema = schema_of("street text, zip int")
        self.table = create_table(self.settings, self.schema)
        self.rows: dict[int, Row] = {}
        self.events: list[list[Any]] = []
        self.batches = 0

    def step(self, ids: range, gone: range = range(0), city: str | None = None) -> None:
        """Write rows, delete others, and refresh the view and the row events."""
        self.batches += 1
        changes = []
        for id_ in (*ids, *gone):
            before, made = self.rows.pop(id_, None), values(7 * self.batches + id_, city)
            change = write(id_, 1, 10 * self.batches, **({} if id_ in gone else made))
            if id_ in gone:
                del change["marker"]
                change["tombstone"] = {"write_time": 10 * self.batches, "deletion_time": 1}
            else:
                self.rows[id_] = {"id": id_, "n": 1, **dict.fromkeys(TYPES), **(before or {}), **made}
            kind = "DELETE" if id_ in gone else "UPDATE" if before else "CREATE"
            self.events.append([kind, before, self.rows.get(id_)])
            changes.append(change)
        add(self.table, changes, self.batches, self.schema)
        extend(self.table)
        refresh(self.settings, self.table)


def as_read(reader: str, row: Any) -> Any:
    """A row as an engine reads it: pyiceberg reads a null list of structs as an empty one."""
    return {**row, "keyed": row["keyed"] or []} if row and reader == "pyiceberg" else row


def read(reader: Reader, table: BucketedTable, columns: list[str]) -> list[Any]:
    found = reader.rows(Path(table.storage.address), None).select(columns)
    return in_order([list(row.values()) for row in found.to_pylist()])


def in_order(rows: list[list[Any]]) -> list[Any]:
    return sorted(map(plain, rows), key=repr)


def test_each_reader_reads_nested_values(tmp_path: Path) -> None:
    written = Written(tmp_path)
    columns = ["id", "n", *TYPES]

    def assert_read() -> None:
        for name, reader in READERS.items():
            rows = [[as_read(name, row)[n] for n in columns] for row in written.rows.values()]
            assert read(reader, written.table.view, columns) == in_order(rows), name
            events = [[kind, as_read(name, before), as_read(name, after)] for kind, before, after in written.events]
            assert read(reader, written.table.row_events, ["kind", "before", "after"]) == in_order(events), name

    written.step(range(12))
    assert_read()
    written.step(range(3, 14), range(3))
    assert_read()
    written.schema = schema_of("street text, zip int, city text")
    written.table.follow(written.schema)
    written.step(range(5, 9), range(9, 10), "Lviv")
    assert_read()
