"""The output of the command line, and outputs that fail."""

import json
import os
import subprocess
import sys
from collections import namedtuple
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cassandra.util import Date, Duration, OrderedMap, SortedSet, Time

from tests.support.made import add, batch, cell, new_table, write
from tests.support.published import command
from writetime.cli.cql_values import json_of
from writetime.cli.storage import statistics
from writetime.schema.cql import parse_table

pytestmark = pytest.mark.slow

Place = namedtuple("Place", ["x", "tags"])
VALUES: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (1 << 80, 1 << 80),
    (1.5, 1.5),
    (float("nan"), "NaN"),
    (float("-inf"), "-Infinity"),
    ("é", "é"),
    (b"\x00\xff", "0x00ff"),
    (UUID(int=10), "00000000-0000-0000-0000-00000000000a"),
    (Decimal("1.10"), "1.10"),
    (datetime(2026, 1, 2, 3, 4, 5, 6000), "2026-01-02T03:04:05.006000Z"),
    (Date(4_000_000), "12921-08-18"),
    (Time("01:02:03.000000004"), "01:02:03.000000004"),
    (Duration(1, 2, 3), {"months": 1, "days": 2, "nanoseconds": 3}),
    ([float("inf"), None], ["Infinity", None]),
    (SortedSet([b"b", b"a"]), ["0x61", "0x62"]),
    (OrderedMap([("a", b"\x01")]), {"a": "0x01"}),
    (OrderedMap([(1, Decimal(2))]), [[1, "2"]]),
    ((1, b"\x02"), [1, "0x02"]),
    (Place(1, SortedSet(["b", "a"])), {"x": 1, "tags": ["a", "b"]}),
]


@pytest.mark.parametrize(("value", "form"), VALUES, ids=lambda v: type(v).__name__)
def test_values_of_the_database_are_json_without_loss(value: Any, form: Any) -> None:
    assert json_of(value) == form
    assert json.loads(json.dumps(json_of(value), allow_nan=False)) == form


def run(folder: Path, output: Any, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "WRITETIME_LAKE__PATH": str(folder / "lake"), **variables}
    command = [sys.executable, "-m", "writetime", "view", "shop.items", *arguments]
    return subprocess.run(command, env=environment, stdout=output, stderr=subprocess.PIPE, check=False)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    add(new_table(tmp_path / "lake"), [write(1, 1, 1, v="☃ é")], 1)
    return tmp_path


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, of Linux")
@pytest.mark.parametrize("form", ["table", "jsonl", "parquet"])
def test_a_full_disk_is_one_line(lake: Path, form: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run(lake, full, "--format", form)
    assert (done.returncode, done.stderr) == (1, b"Error: output: No space left on device\n")


def test_a_terminal_that_lacks_a_character_shows_its_escape(lake: Path) -> None:
    done = run(lake, subprocess.PIPE, PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split(b"  ")[2:3] == [b"\\u2603 \xe9"]


def test_statistics_count_the_cells_of_columns_that_are_not_frozen() -> None:
    table = "CREATE TABLE shop.items (id int, n int, v text, m map<int, int>, p place, PRIMARY KEY (id, n))"
    schema = parse_table(f"CREATE TYPE shop.place (x int, y text, z int); {table}", "shop")
    deleted = {"write_time": 2, "tombstone": True}
    fields = {"x": cell(1, 6), "y": deleted, "z": None}
    changes = [
        write(1, 1, 5, v="a"),
        {**write(1, 2, 5), "m": {"tombstone": None, "elements": [{"path": 1, **cell(1, 5)}, {"path": 2, **deleted}]}},
        {**write(1, 3, 5), "m": {"tombstone": {"write_time": 1, "deletion_time": 0}, "elements": []}},
        {**write(1, 4, 5), "p": {"tombstone": {"write_time": 4, "deletion_time": 0}, "fields": fields}},
    ]
    found = statistics([(schema, batch(changes, schema))])["shop.items"]
    assert found["columns"] == {
        "v": {"cells": 1, "tombstones": 0},
        "m": {"cells": 2, "tombstones": 2},
        "p": {"cells": 2, "tombstones": 2},
    }
    assert (found["first_write_time"], found["last_write_time"]) == (1, 6)


def test_a_table_shows_values_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a view look like those of the row events that made it."""
    monkeypatch.setenv("WRITETIME_LAKE__PATH", str(tmp_path))
    table = new_table(
        tmp_path,
        schema := parse_table(
            "CREATE TABLE shop.items (id int, n int, ok boolean, tags frozen<set<text>>, v text, PRIMARY KEY (id, n))"
        ),
    )
    add(table, [write(1, 1, 1, ok=True, tags=["a", "é"], v="it's")], 0, schema)
    assert command("view", "shop.items").stdout.splitlines() == [
        "id  n  ok    tags        v",
        '1   1  true  ["a", "é"]  it\'s',
    ]
