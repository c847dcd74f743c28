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

from tests.support.made import add, new_table, write
from writetime.cli.cql_values import json_of

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
