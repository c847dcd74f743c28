"""Conditions on dates, timestamps and bytes read by key, and find the rows that DuckDB finds in the whole view.

Oracle: DuckDB, on the view.
"""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.generate import SEED
from tests.support.made import add, new_table
from writetime.changes.position import AT, position_encoder
from writetime.cli.view import filtered, rows_where
from writetime.files.key_ranges import KeyRanges
from writetime.lake import state, views
from writetime.lake.table import LakeTable
from writetime.lookup.conditions import conditions_of
from writetime.lookup.keys import places_of_condition
from writetime.schema.cql import parse_table
from writetime.schema.serialise import serialiser
from writetime.schema.types import Native
from writetime.storage.kernel.primitives import token

pytestmark = pytest.mark.slow

SCHEMA = parse_table("""
    CREATE TABLE shop.days (day date, made timestamp, b blob, v int, PRIMARY KEY (day, made, b))
    WITH CLUSTERING ORDER BY (made DESC, b ASC)
""")
# Around 1970, of today, and far from both.
_DAYS = (-1, 0, 20_000, 2_900_000)
_MILLIS = (-86_400_000, -1, 0, 1, 86_399_999, 86_400_000, 10**15)
_BYTES = (b"", b"\x00", b"a", b"a\xff", b"\xff")
_date, _timestamp, _blob = (serialiser(Native(name)) for name in ("date", "timestamp", "blob"))
_encode = position_encoder(SCHEMA.clustering)


def change(day: int, millis: int, b: bytes, at: int) -> dict[str, Any]:
    key = _date(day)
    made = {"kind": "row", "day": day, "key": key, "token": token(key), "made": millis, "b": b}
    made |= {"position": _encode([_timestamp(millis), _blob(b)], AT)}
    return made | {"marker": {"write_time": at}, "v": {"value": at % 100, "write_time": at, "tombstone": False}}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LakeTable:
    chooser = random.Random(SEED)
    made = new_table(tmp_path_factory.mktemp("lake"), SCHEMA)
    every = [(day, millis, b) for day in _DAYS for millis in _MILLIS for b in _BYTES]
    for number in range(3):
        changes = [change(*each, at=number * 1000 + n) for n, each in enumerate(chooser.sample(every, 60))]
        add(made, changes, number, SCHEMA)
        if number == 1:
            state.fold(made)
    return made


@pytest.fixture(scope="module")
def whole(table: LakeTable) -> pa.Table:
    """All rows of the view."""
    return pa.concat_tables(views.virtual(table))


def in_duckdb(rows: pa.Table, where: str) -> list[dict[str, Any]]:
    numbered = rows.append_column("number", pa.array(range(rows.num_rows)))
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        found = database.from_arrow(numbered).filter(where).order("number").project("number").fetchall()
    return texts_of(rows.take(pa.array([number for (number,) in found], pa.int64())))


def texts_of(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows, with times as numbers: Python has no year 33658."""
    return (
        rows.set_column(0, "day", rows["day"].cast(pa.int32()))
        .set_column(1, "made", rows["made"].cast("int64"))
        .to_pylist()
    )


def day_of(days: int) -> str:
    return duckdb.execute("SELECT (DATE '1970-01-01' + ?::INTEGER)::VARCHAR", [days]).fetchall()[0][0]


def time_of(micros: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat(" ")


_COMPARISONS = st.sampled_from(["=", "<", "<=", ">", ">="])
_DAY = st.sampled_from(_DAYS).map(day_of)
_OF_DAY = st.one_of(
    st.builds("day = '{}'".format, _DAY),
    st.builds("day = DATE '{}'".format, _DAY),
    st.builds("day IN ('{}', DATE '{}')".format, _DAY, _DAY),
)
# Also half a millisecond before and after values, which the database does not have.
_TIME = st.builds(
    lambda millis, micros: time_of(millis * 1000 + micros),
    st.sampled_from(_MILLIS[:-1]),
    st.sampled_from([0, 0, -500, 500]),
)
_LITERAL = st.one_of(
    _TIME.map("'{}'".format),
    _TIME.map("TIMESTAMPTZ '{}'".format),
    _TIME.map(lambda text: f"TIMESTAMP '{text[:-6]}'"),
    st.sampled_from(["'1970-01-01'", "DATE '1970-01-02'", "'1970-01-02 00:00:00+02'"]),
)
# DuckDB rejects them in lists.
_INFINITE = st.sampled_from(["'infinity'", "'-infinity'"])
_OF_MADE = st.one_of(
    st.builds("made {} {}".format, _COMPARISONS, st.one_of(_LITERAL, _LITERAL, _INFINITE)),
    st.builds("{} {} made".format, _LITERAL, _COMPARISONS),
    st.builds("made BETWEEN {} AND {}".format, _LITERAL, _LITERAL),
    st.builds("made IN ({}, {})".format, _LITERAL, _LITERAL),
)
_TEXT = st.sampled_from(_BYTES).map(lambda b: "".join(f"\\x{each:02X}" for each in b))
_OF_B = st.one_of(
    st.builds("b {} '{}'".format, _COMPARISONS, _TEXT),
    st.builds("b {} '{}'::BLOB".format, _COMPARISONS, _TEXT),
    st.builds("b IN ('{}', '{}')".format, _TEXT, _TEXT),
)


@examples(150)
@given(_OF_DAY, st.lists(st.one_of(_OF_MADE, _OF_MADE, _OF_B), max_size=3))
def test_parts_of_partitions(table: LakeTable, whole: pa.Table, of_day: str, others: list[str]) -> None:
    where = " AND ".join([of_day, *others])
    assert isinstance(places_of_condition(conditions_of(where, ["day"]), SCHEMA), KeyRanges)
    (found,) = rows_where(table, where, None, Counter())
    assert texts_of(found) == in_duckdb(whole, where)


@pytest.mark.parametrize("where", ["day = 'no date'", "day = TIMESTAMP '1970-01-01'", "day >= '1970-01-01'"])
def test_literals_that_name_no_partition(where: str) -> None:
    assert places_of_condition(conditions_of(where, ["day"]), SCHEMA) is None


def test_a_range_of_times_reads_its_rows(table: LakeTable) -> None:
    (narrow, wide) = (
        places_of_condition(conditions_of(f"day = '1970-01-01'{more}", ["day"]), SCHEMA)
        for more in (" AND made >= '1970-01-01 00:00:00.001'", "")
    )
    assert isinstance(narrow, KeyRanges)
    assert isinstance(wide, KeyRanges)
    assert narrow != wide


@pytest.mark.parametrize("column", ["day", "made"])
def test_times_that_python_does_not_have(column: str) -> None:
    """Lists and comparisons of infinite times and of years beyond 9999 find the rows that a table of DuckDB finds."""
    days = pa.array([None, -(2**31) + 1, -1, 0, 2_932_896, 2_932_897, 2**31 - 1], pa.int32()).cast(pa.date32())
    micros = [None, -(2**63) + 1, -1, 0, 253_402_300_799_999_999, 253_402_300_800_000_000, 2**63 - 1]
    made = pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"n": range(len(days)), "day": days, "made": made})
    times = ["-infinity", "infinity", "1969-12-31", "1970-01-01", "9999-12-31", "10000-01-01"]
    conditions = [
        f"{column} {verb} ('{one}', '{other}')" for verb in ("IN", "NOT IN") for one in times for other in times
    ]
    conditions += [f"{column} {sign} '{one}'" for sign in ("=", "<>", "<", ">=") for one in times]
    conditions += [f"{column} BETWEEN '{one}' AND '{other}' OR {column} IS NULL" for one in times for other in times]
    with duckdb.connect() as oracle:
        oracle.execute("SET TimeZone = 'UTC'")
        oracle.from_arrow(rows).create("stored")
        for where in conditions:
            wanted = [n for (n,) in oracle.execute(f"SELECT n FROM stored WHERE {where} ORDER BY n").fetchall()]
            assert filtered(rows, where)["n"].to_pylist() == wanted, where
