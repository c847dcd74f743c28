"""Look-ups of a part of a partition, and of ranges of tokens, find the rows that DuckDB finds in the whole view.

Oracle: DuckDB, on the view.
"""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import is_long_run
from tests.support.generate import SEED
from tests.support.made import add, new_table, settings_at
from writetime.api.tables import Table, open_table
from writetime.changes.position import AFTER, AT, BEFORE, PARTITION_POSITION, STATIC_POSITION, position_encoder
from writetime.cli.view import rows_where
from writetime.core.errors import WritetimeError
from writetime.delta import buckets
from writetime.files.key_ranges import KeyRanges, TokenRange
from writetime.lake import state, views
from writetime.lake.table import LakeTable
from writetime.lookup.conditions import conditions_of
from writetime.lookup.keys import places_of_condition
from writetime.schema.cql import parse_table
from writetime.schema.serialise import serialiser
from writetime.schema.types import Native
from writetime.storage.kernel.primitives import token

pytestmark = pytest.mark.long

SCHEMA = parse_table("""
    CREATE TABLE shop.wide (p int, a int, b text, s int static, v int, PRIMARY KEY (p, a, b))
    WITH CLUSTERING ORDER BY (a DESC, b ASC)
""")
_PARTITIONS = 8
_TEXTS = ("", "a", "aa", "b", "\u00e9")
_int, _text = serialiser(Native("int")), serialiser(Native("text"))
_encode = position_encoder(SCHEMA.clustering)
_EXAMPLES = settings(max_examples=80 if is_long_run() else 10)


def change(chooser: random.Random, at: int) -> dict[str, Any]:
    """A change of a row, of static values, or a deletion."""
    p, a, b = chooser.randrange(_PARTITIONS), chooser.randint(-3, 6), chooser.choice(_TEXTS)
    key = _int(p)
    made: dict[str, Any] = {"kind": "row", "p": p, "key": key, "token": token(key)}
    kind = chooser.choices(["row", "deleted", "range", "static", "partition"], [20, 2, 2, 2, 0.3])[0]
    gone = {"tombstone": {"write_time": at, "deletion_time": at // 1_000_000}}
    if kind == "partition":
        return made | gone | {"kind": "partition_tombstone", "position": PARTITION_POSITION}
    if kind == "static":
        return made | {"kind": "static", "position": STATIC_POSITION, "s": cell(at)}
    if kind == "range":
        first, last = sorted([a, chooser.randint(-3, 6)], reverse=True)
        ends = {"position": _encode([_int(first)], BEFORE), "end": _encode([_int(last)], AFTER)}
        return made | gone | {"kind": "range_tombstone"} | ends
    made |= {"a": a, "b": b, "position": _encode([_int(a), _text(b)], AT)}
    if kind == "deleted":
        return made | gone
    return made | {"v": cell(at)} | ({"marker": {"write_time": at}} if chooser.random() < 0.5 else {})


def cell(at: int) -> dict[str, Any]:
    return {"value": at % 1000, "write_time": at, "tombstone": False}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LakeTable:
    """A table with levels and changes that wait, in files of one bucket and of all."""
    chooser = random.Random(SEED)
    made = new_table(tmp_path_factory.mktemp("lake") / "lake", SCHEMA)
    for number in range(12):
        times = [chooser.randrange(1, 1 << 40) for _ in range(60)]
        with patch.object(buckets, "FEW_ROWS", chooser.choice([0, 4096])):
            add(made, [change(chooser, at) for at in times], number, SCHEMA)
            if number % 3 == 0:
                state.fold(made)
    return made


@pytest.fixture(scope="module")
def whole(table: LakeTable) -> pa.Table:
    """All rows of the view."""
    return pa.concat_tables(views.virtual(table))


@pytest.fixture(scope="module")
def opened(table: LakeTable) -> Table:
    return open_table("shop.wide", settings_at(Path(table.changes.storage.address).parents[1]))


def in_duckdb(rows: pa.Table, where: str) -> list[dict[str, Any]]:
    """The rows for which a condition is true, in their order. The condition names the token as a column."""
    tokens = pa.array([token(_int(p)) for p in rows["p"].to_pylist()], pa.int64())
    numbered = rows.append_column("number", pa.array(range(rows.num_rows))).append_column("token", tokens)
    found = duckdb.from_arrow(numbered).filter(where).order("number").fetch_arrow_table()
    return found.drop_columns(["number", "token"]).cast(rows.schema).to_pylist()


def looked_up(table: LakeTable, where: str) -> list[dict[str, Any]]:
    return [row for part in rows_where(table, where, None, Counter()) for row in part.to_pylist()]


_NUMBERS, _LITERALS = st.integers(-4, 7), st.sampled_from(_TEXTS)
_COMPARISONS = st.sampled_from(["=", "<", "<=", ">", ">=", "<>"])
_OF_A = st.one_of(
    st.builds("a {} {}".format, _COMPARISONS, _NUMBERS),
    st.builds("{} {} a".format, _NUMBERS, _COMPARISONS),
    st.builds("a BETWEEN {} AND {}".format, _NUMBERS, _NUMBERS),
    st.builds("a IN ({}, {})".format, _NUMBERS, _NUMBERS),
    st.sampled_from(["a > 3000000000", "a < 3000000000", "a > 1.5", "a = NULL", "a IS NULL", "a > v"]),
)
_OF_B = st.one_of(
    st.builds("b {} '{}'".format, _COMPARISONS, _LITERALS), st.builds("B IN ('{}', '{}')".format, _LITERALS, _LITERALS)
)
_OF_P = st.one_of(
    st.builds("p = {}".format, st.integers(-1, _PARTITIONS)),
    st.builds("p IN ({}, {})".format, st.integers(0, _PARTITIONS), st.integers(0, _PARTITIONS)),
)


@_EXAMPLES
@given(_OF_P, st.lists(st.one_of(_OF_A, _OF_A, _OF_B), max_size=3))
def test_parts_of_partitions(table: LakeTable, whole: pa.Table, of_p: str, others: list[str]) -> None:
    where = " AND ".join([of_p, *others])
    assert isinstance(places_of_condition(conditions_of(where, ["p"]), SCHEMA), KeyRanges)
    assert looked_up(table, where) == in_duckdb(whole, where)


@_EXAMPLES
@given(
    st.lists(st.tuples(st.integers(0, _PARTITIONS), st.integers(-4, 7), _LITERALS), min_size=1, max_size=9),
    st.sampled_from(["p", "pa", "pab", "pb"]),
)
def test_keys_with_clustering_columns(
    opened: Table, whole: pa.Table, keys: list[tuple[int, int, str]], names: str
) -> None:
    rows = whole.to_pylist()
    asked = [{name: value for name, value in zip("pab", key, strict=True) if name in names} for key in keys]
    wanted = [row for row in rows if any(all(row[n] == value for n, value in key.items()) for key in asked)]
    assert opened.lookup(asked).to_pylist() == wanted


_TOKENS = st.one_of(
    st.integers(0, _PARTITIONS).map(lambda p: token(_int(p))), st.sampled_from([-(1 << 63), 0, (1 << 63) - 1])
)


@_EXAMPLES
@given(_TOKENS, _TOKENS, _COMPARISONS)
def test_ranges_of_tokens(
    table: LakeTable, opened: Table, whole: pa.Table, first: int, last: int, comparison: str
) -> None:
    assert opened.between(first, last).to_pylist() == in_duckdb(whole, f"token BETWEEN {first} AND {last}")
    where = f"TOKEN(P) {comparison} {first} AND token(p) <= {last} AND v > 100"
    assert isinstance(places_of_condition(conditions_of(where, ["p"]), SCHEMA), TokenRange)
    in_columns = where.replace("TOKEN(P)", "token").replace("token(p)", "token")
    assert looked_up(table, where) == in_duckdb(whole, in_columns)


@pytest.mark.parametrize("where", ["token(p) > 0 OR p = 3", "token(p) % 2 = 0", "token(p) IN (v, 1)"])
def test_tokens_that_name_no_range(table: LakeTable, whole: pa.Table, where: str) -> None:
    assert places_of_condition(conditions_of(where, ["p"]), SCHEMA) is None
    assert looked_up(table, where) == in_duckdb(whole, where.replace("token(p)", "token"))


def test_tokens_of_a_past_time_are_refused(table: LakeTable) -> None:
    with pytest.raises(WritetimeError, match=r"token\(\) works for the present rows only: omit --as-of"):
        list(rows_where(table, "token(p) > 0", 1 << 50, Counter()))


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_condition_means_the_same_in_each_zone(zone: str) -> None:
    wheres = ["made = '2026-01-01 23:00:00'", "day(made) = 1", "made::VARCHAR LIKE '2026-01-01%'"]
    code = (
        "import sys; import pyarrow as pa; from writetime.cli.view import filtered\n"
        "micros = pa.array([1767308400000000]).cast(pa.timestamp('us', 'UTC'))\n"
        "print([filtered(pa.table({'made': micros}), where).num_rows for where in sys.argv[1:]])"
    )
    command = [sys.executable, "-c", code, *wheres]
    done = subprocess.run(command, env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, 1, 1]"


def test_a_token_of_other_columns(table: LakeTable) -> None:
    with pytest.raises(WritetimeError, match="token"):
        looked_up(table, "token(a) > 5")


def test_how_many_rows_are_read(table: LakeTable, whole: pa.Table) -> None:
    """Of a partition, those that the condition asks for."""
    one = whole.to_pylist()[0]["p"]
    with patch("writetime.lookup.reading.live", wraps=views.live_rows.__globals__["live"]) as counted:
        looked_up(table, f"p = {one} AND a >= 5")
    (state_rows, *_), _ = counted.call_args
    in_places = [row for row in state_rows.to_pylist() if row["kind"] == "row"]
    assert all(row["a"] >= 5 for row in in_places)
