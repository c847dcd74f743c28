"""Changes from before a schema change, and changes that cannot be merged."""

import re

import pyarrow as pa
import pytest

from writetime.changes.model import change_schema
from writetime.changes.position import STATIC_POSITION
from writetime.merge import live_rows, merge
from writetime.schema.cql import parse_table
from writetime.schema.table import SchemaError

KEY = {"p": 1, "key": b"\0\0\0\1", "token": -4069959284402364209}
ROW = {**KEY, "kind": "row", "position": b"\x38", "marker": {"write_time": 1}}
OLDER = """
    CREATE TYPE k.u (a int, b text);
    CREATE TABLE k.t (p int PRIMARY KEY, gone int, kept text, u u, f frozen<list<frozen<u>>>, m map<int, frozen<u>>)
"""
NEWER = """
    CREATE TYPE k.u (a int, renamed text, c int);
    CREATE TABLE k.t (p int PRIMARY KEY, kept blob, u u, f frozen<list<frozen<u>>>, m map<int, frozen<u>>, added int)
"""


def cell(value: object) -> dict[str, object]:
    return {"value": value, "write_time": 5, "tombstone": False}


def test_states_of_an_older_schema_are_merged_on() -> None:
    older, newer = parse_table(OLDER), parse_table(NEWER)
    u = {"a": 1, "b": "x"}
    columns = {
        "gone": cell(3),
        "kept": cell("text"),
        "u": {"tombstone": None, "fields": {"a": cell(1), "b": cell("x")}},
        "f": cell([u, None]),
        "m": {"tombstone": None, "elements": [{"path": 1, **cell(u)}]},
    }
    state = merge([pa.Table.from_pylist([ROW | columns], change_schema(older))], older)
    added = pa.Table.from_pylist([ROW | {"added": cell(7)}], change_schema(newer))
    grown = {"a": 1, "renamed": "x", "c": None}
    (row,) = live_rows(merge([state.slice(0), added], newer), newer, 0).to_pylist()
    assert row == {"p": 1, "kept": b"text", "u": grown, "f": [grown, None], "m": [(1, grown)], "added": 7}


def test_dropped_cells_are_void_whenever_they_come() -> None:
    create = "CREATE TABLE k.t (p int PRIMARY KEY, x int);"
    text = f"{create} ALTER TABLE k.t DROP x USING TIMESTAMP 5; ALTER TABLE k.t ADD x int"
    schema = parse_table(text)
    state = merge([pa.Table.from_pylist([ROW | {"x": cell(3)}], change_schema(schema))], schema)
    assert live_rows(state, schema, 0).to_pylist() == [{"p": 1, "x": None}]


def test_a_message_that_is_not_a_change_of_the_table_is_refused() -> None:
    schema = parse_table("CREATE TABLE k.t (p int PRIMARY KEY, x int)")
    table = pa.Table.from_pylist([ROW | {"x": cell(3)}], change_schema(schema))
    with pytest.raises(SchemaError, match="lack the field position"):
        merge([table.drop_columns(["position"])], schema)
    other = parse_table("CREATE TABLE k.t (p int PRIMARY KEY, x text)")
    with pytest.raises(SchemaError, match=r"k\.t, column x: int32 cannot become string"):
        merge([table], other)


def test_counters_that_cannot_be_merged_are_refused() -> None:
    schema = parse_table("CREATE TABLE k.t (p int PRIMARY KEY, n counter)")
    local = {"id": "00000000-0000-4000-8000-000000000001", "kind": "local", "clock": 1, "count": 2, "write_time": 5}
    for shards, message in (([local], "counter k.t.n has local shards"), (None, "counter k.t.n has no shards")):
        table = pa.Table.from_pylist([ROW | {"n": {**cell(2), "shards": shards}}], change_schema(schema))
        with pytest.raises(SchemaError, match=re.escape(message)):
            merge([table], schema)


def test_an_empty_merge_is_empty() -> None:
    schema = parse_table("CREATE TABLE k.t (p int, c int, s int static, PRIMARY KEY (p, c))")
    state = merge([], schema)
    assert state.schema == change_schema(schema)
    assert live_rows(state, schema, 0).num_rows == 0
    empty = pa.Table.from_pylist([KEY | {"kind": "static", "position": STATIC_POSITION}], change_schema(schema))
    assert merge([empty], schema).num_rows == 0
