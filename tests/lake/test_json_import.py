"""Lines of `view --format jsonl` as rows of `INSERT ... JSON`. docs/data-types.md lists the values that it refuses."""

import json
from typing import Any

import pytest
from cassandra import InvalidRequest

from tests.support.published import command
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core import config
from writetime.core.config import Settings
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.table import create_table

# Of each type: a value as `INSERT ... JSON` takes it.
READ = {
    "ascii": "a",
    "bigint": -(1 << 63),
    "blob": "0x00ff",
    "boolean": True,
    "date": "2026-01-02",
    "decimal": "1.10",
    "double": 5e-324,
    "float": "NaN",
    "inet": "10.0.0.1",
    "smallint": 5,
    "text": "it's \u00e9\u0000",
    "timestamp": "2026-01-02T03:04:05.678Z",
    "timeuuid": "50554d6e-29bb-11e5-b345-feff819cdc9f",
    "tinyint": 7,
    "uuid": "7d5e2f3c-0000-4000-8000-000000000001",
    "varint": str(1 << 99),
    "list<int>": [2, 1],
    "set<date>": ["2026-01-02"],
    "map<text, float>": {"k": "Infinity"},
    "map<uuid, int>": {"7d5e2f3c-0000-4000-8000-000000000001": 1},
    "place": {"street": "Main", "zip": [1]},
    "frozen<place>": {"street": None, "zip": None},
    "vector<float, 2>": [1.5, 2.0],
}
REFUSED = {
    "duration": "1mo2d3h",
    "time": "12:34:56.000000007",
    "map<int, text>": {"5": "five"},
    "tuple<int, text>": [1, "one"],
    "list<frozen<tuple<int, text>>>": [[1, "one"]],
    "map<text, time>": {"k": "01:02:03"},
}
COLUMNS = {f"c{number}": kind for number, kind in enumerate((*READ, *REFUSED))}


@pytest.mark.cassandra_only("a snapshot of this machine's node")
def test_insert_json_reads_lines_of_a_view_with_the_exceptions_that_are_documented(settings: Settings) -> None:
    name = f"{settings.cassandra.keyspace}.every"
    given = dict(zip(COLUMNS, (READ | REFUSED).values(), strict=True))
    with connect(settings) as session:
        session.execute(f"CREATE TYPE {settings.cassandra.keyspace}.place (street text, zip frozen<list<int>>)")
        columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
        session.execute(f'CREATE TABLE {name} (id int PRIMARY KEY, "Quoted" int, {columns})')

        def insert(row: dict[str, Any]) -> None:
            session.execute(f"INSERT INTO {name} JSON %s DEFAULT UNSET", [json.dumps(row)])

        insert({"id": 1, '"Quoted"': 4, **given})
        snapshot = find_snapshots(list(map(str, take_snapshot(settings, name, "json"))))
        list(backfill(create_table(config.load(), snapshot.schema), snapshot))
        line: dict[str, Any] = json.loads(command("view", name, "--format", "jsonl").stdout)
        refused = set()
        insert({"id": 2, '"Quoted"': line.pop("Quoted")})
        for column, kind in COLUMNS.items():
            try:
                insert({"id": 2, column: line[column]})
            except InvalidRequest:
                refused.add(kind)
        assert refused == REFUSED.keys()
        read = ['"Quoted"', *(column for column, kind in COLUMNS.items() if kind in READ)]
        one, two = session.execute(f"SELECT JSON {', '.join(read)} FROM {name}")
        assert one == two
