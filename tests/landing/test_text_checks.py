"""Texts that are invalid for their types are refused in any place of a change; valid texts are accepted.

Oracle: the generator: it makes valid texts of each type, and the test makes invalid ones.
"""

import dataclasses
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.made import cell
from writetime.changes.model import change_schema
from writetime.core.errors import WritetimeError
from writetime.landing.text_checks import check_texts
from writetime.schema.cql import parse_table
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native
from writetime.schema.values import decoder

SOUND = {
    "decimal": ["0", "-1.10", "1E+30", "0E-40", "-1.5E-2147483600", "1E+2147483647"],
    "varint": ["0", "-1", "9" * 4300],
    "inet": ["127.0.0.1", "0.0.0.0", "255.255.255.255", "::1", "2001:db8::ff00:42:8329", "::ffff:1.2.3.4"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "timeuuid": ["00000001-0000-1000-8000-00000000000a"],
}
WRONG = {
    "decimal": ["", "x", "1,5", "NaN", "Infinity", "1E", "1E+99999999999", "--1", " 1", "1\n", "٣", "1_0", "\ufdd0"],
    "varint": ["", "x", "1.0", "-", "0x1", " 1", "1_0", "٣", "1\n"],
    "inet": ["", "x", "256.1.1.1", "1.2.3", "1.2.3.4.", "1.2.3.4/8", ":::1", "fe80::1%eth0", "::1\n", "::ffff:102:304"],
    "uuid": ["", "x", "00000000000000000000000000000000", "{00000000-0000-0000-0000-000000000000}", "0" * 36],
    "timeuuid": ["", "00000001-0000-1000-8000-00000000000A", "00000001-0000-1000-8000-00000000000"],
}


def places(name: str) -> dict[str, tuple[str, Any]]:
    """CQL types that contain a type, and a function that puts a text there."""

    def elements(make: Any) -> Any:
        return lambda text: {"elements": [make(text)]}

    return {
        "cell": (name, lambda text: cell(text, 5)),
        "list": (f"list<{name}>", elements(lambda t: {"path": SOUND["timeuuid"][0], **cell(t, 5)})),
        "set": (f"set<{name}>", elements(lambda t: {"path": t, **cell_of_set(5)})),
        "map key": (f"map<{name}, int>", elements(lambda t: {"path": t, **cell(1, 5)})),
        "map value": (f"map<int, frozen<list<{name}>>>", elements(lambda t: {"path": 1, **cell([t, t], 5)})),
        "frozen list": (f"frozen<list<{name}>>", lambda t: cell([None, t], 5)),
        "frozen map": (f"frozen<map<{name}, {name}>>", lambda t: cell([(t, None)], 5)),
        "map of maps": (f"frozen<map<frozen<map<{name}, int>>, int>>", lambda t: cell([entry(t)], 5)),
        "tuple": (f"tuple<int, {name}>", lambda t: cell({"_1": 1, "_2": t}, 5)),
        "vector": (f"vector<{name}, 2>", lambda t: cell([t, t], 5)),
        "udt": ("u", lambda t: {"fields": {"a": None, "b": cell(t, 5), "c": cell([t], 5)}}),
        "frozen udt": ("frozen<u>", lambda t: cell({"a": 1, "b": t, "c": None}, 5)),
    }


def test_bytes_that_decoding_loses() -> None:
    types = {"cell": "tuple<int, text>", "set": "set<frozen<tuple<int, text>>>", "udt": "v"}
    table = parse_table(
        "CREATE TYPE ks.v (a frozen<tuple<int, text>>); CREATE TABLE ks.t (k int PRIMARY KEY, "
        + ", ".join(f"c_{place} {cql_type}" for place, cql_type in types.items())
        + ")"
    )
    made = {
        "cell": lambda data: {**cell(None, 5), "value_bytes": data},
        "set": lambda data: {"elements": [{"path": None, "path_bytes": data, **cell_of_set(5)}]},
        "udt": lambda data: {"fields": {"a": {**cell(None, 5), "value_bytes": data}}},
    }
    for place, make in made.items():
        for data, is_sound in ((b"\0\0\0\0", True), (b"\0\0\0\2\0\0", False), (b"\0\0\0\1", False)):
            changes = pa.Table.from_pylist([{f"c_{place}": make(data)}], change_schema(table))
            if is_sound:
                check_texts(changes, table)
                continue
            with pytest.raises(WritetimeError, match=f"column c_{place}: 0x{data.hex()} is not a valid"):
                check_texts(changes, table)


def cell_of_set(write_time: int) -> dict[str, Any]:
    return {"write_time": write_time, "tombstone": False}


def entry(text: str) -> dict[str, Any]:
    return {"key": [(text, 1)], "value": 1}


def table(name: str, column_type: str) -> TableSchema:
    return parse_table(
        f"CREATE TYPE k.u (a int, b {name}, c frozen<set<{name}>>); "
        f"CREATE TABLE k.t (p int, c {name}, w {column_type}, PRIMARY KEY (p, c))"
    )


def changes(schema: TableSchema, *rows: dict[str, Any]) -> pa.Table:
    empty = {"kind": "row", "p": 1}
    return pa.Table.from_pylist([empty, *({**empty, **row} for row in rows), empty], change_schema(schema))


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("place", places("int"))
def test_an_invalid_text_is_refused_in_any_place(name: str, place: str) -> None:
    column_type, make = places(name)[place]
    schema = table(name, column_type)
    check_texts(changes(schema, *({"w": make(text)} for text in SOUND[name])), schema)
    for text in WRONG[name]:
        with pytest.raises(WritetimeError, match=f"column w: .* is not a valid {name}"):
            check_texts(changes(schema, {"w": make(SOUND[name][0])}, {"w": make(text)}), schema)


@pytest.mark.parametrize("name", SOUND)
def test_an_invalid_text_in_a_key_is_refused(name: str) -> None:
    schema = table(name, "int")
    check_texts(changes(schema, *({"c": text} for text in SOUND[name])), schema)
    for text in WRONG[name]:
        with pytest.raises(WritetimeError, match=f"column c: .* is not a valid {name}"):
            check_texts(changes(schema, {"c": text}), schema)


def test_places_of_list_elements_and_nodes_of_counters_are_texts_too() -> None:
    schema = table("int", "list<int>")
    with pytest.raises(WritetimeError, match="column w: 'x' is not a valid timeuuid"):
        check_texts(changes(schema, {"w": {"elements": [{"path": "x", **cell(1, 5)}]}}), schema)
    counted = dataclasses.replace(schema, regular=(Column("w", Native("counter")),))
    shard = {"id": "x", "kind": "global", "clock": 1, "count": 1, "write_time": 1}
    with pytest.raises(WritetimeError, match="column w: 'x' is not a valid uuid"):
        check_texts(changes(counted, {"w": {**cell(1, 5), "shards": [shard]}}), counted)


@pytest.mark.parametrize("name", SOUND)
@given(data=st.data())
@examples(200)
def test_texts_of_all_values_are_accepted(name: str, data: st.DataObject) -> None:
    sizes = {"uuid": [16], "timeuuid": [16], "inet": [4, 16], "decimal": range(5, 40), "varint": range(1, 40)}
    size = data.draw(st.sampled_from(sizes[name]))
    text = decoder(Native(name))(data.draw(st.binary(min_size=size, max_size=size)))
    schema = table(name, name)
    check_texts(changes(schema, {"c": text, "w": cell(text, 5)}), schema)
