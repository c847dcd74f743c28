"""Keys of all types, and in all forms, find their rows."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tests.support.made import add, new_table, settings_at, write
from writetime.api.tables import open_table
from writetime.core.errors import WritetimeError
from writetime.lake.table import view_schema
from writetime.lookup.matching import keys_table, matching
from writetime.schema.cql import parse_table
from writetime.schema.table import TableSchema

ID = "0e0cbf80-7a4d-11f1-8a5c-00000000000a"
# By type: values in the view, and the other forms in which a key may have each.
FORMS: dict[str, dict[str, Any]] = {
    "uuid": {"view": [ID, None, ID.replace("a", "b")], "asked": [UUID(ID), ID.upper()]},
    "inet": {"view": ["2001:db8::a", "10.0.0.1"], "asked": [ip_address("2001:db8::a"), "2001:DB8:0::A"]},
    "decimal": {"view": ["1.10", "1.1"], "asked": [Decimal("1.10")]},
    "varint": {"view": ["7", "8"], "asked": [7]},
    "timestamp": {"view": [datetime(2026, 1, 1, tzinfo=UTC), None], "asked": [datetime(2026, 1, 1, tzinfo=UTC)]},
    "date": {"view": [date(2026, 1, 1), None], "asked": []},
    "double": {"view": [float("nan"), 1.0], "asked": [float("nan")]},
    "duration": {"view": [{"months": 1, "days": 2, "nanoseconds": 3}, None], "asked": []},
    "frozen<list<int>>": {"view": [[1, 2], [2, 1], [1], []], "asked": [(1, 2)]},
    "frozen<set<uuid>>": {"view": [[ID, ID.replace("a", "b")], [ID]], "asked": [{ID.upper(), ID.replace("a", "b")}]},
    "frozen<map<int, text>>": {"view": [[(1, "a"), (2, "b")], []], "asked": [{2: "b", 1: "a"}]},
    "frozen<map<frozen<map<int, int>>, int>>": {
        "view": [[{"key": [(1, 2)], "value": 3}], []],
        "asked": [[({1: 2}, 3)]],
    },
    "frozen<tuple<int, text>>": {"view": [{"_1": 1, "_2": "a"}, {"_1": 1, "_2": None}], "asked": [(1, "a")]},
    "frozen<tuple<frozen<list<double>>>>": {"view": [{"_1": [float("nan")]}, {"_1": None}], "asked": []},
    "frozen<place>": {"view": [{"x": 1, "tags": ["a", "b"]}, None], "asked": [{"x": 1, "tags": {"b", "a"}}]},
    "vector<float, 2>": {"view": [[1.0, 2.0], [2.0, 1.0]], "asked": []},
}


def schema_of(cql_type: str) -> TableSchema:
    return parse_table(
        "CREATE TYPE shop.place (x int, tags frozen<set<text>>);"
        f"CREATE TABLE shop.items (id int, n {cql_type}, v text, PRIMARY KEY (id, n))"
    )


@pytest.mark.parametrize("cql_type", FORMS)
def test_a_value_is_found_in_each_form(cql_type: str) -> None:
    schema, forms = schema_of(cql_type), FORMS[cql_type]
    view = forms["view"]
    columns = {"id": [1] * len(view), "n": view, "v": ["a"] * len(view)}
    rows = pa.table(columns, view_schema(schema))
    for value in [view[0], *forms["asked"]]:
        keys: list[Mapping[str, Any]] = [{"n": value, "id": 1}, {"n": value, "id": 2}]
        assert matching(rows, keys_table(keys, schema), schema).to_pylist() == [0]
    assert matching(rows, keys_table([{"n": None}], schema), schema).to_pylist() == []
    assert matching(rows, keys_table([{"n": v} for v in view], schema), schema).to_pylist() == [
        i for i, value in enumerate(view) if value is not None
    ]


def test_dates_that_python_does_not_have() -> None:
    schema = schema_of("frozen<list<date>>")
    days = pa.array([[4_000_000], [5_000_000], None], pa.list_(pa.int32())).cast(view_schema(schema).field("n").type)
    rows = pa.table([pa.array([1, 2, 3], pa.int32()), days, pa.nulls(3, pa.string())], schema=view_schema(schema))
    assert matching(rows, rows.select(["n"]).slice(1), schema).to_pylist() == [1]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([{"it": 1}], "shop.items has no column 'it'; known are id, n, v"),
        ({"id": 1}, "the keys are one key; give a list of keys, such as [{'id': 1}]"),
        ([{}], "a key names no column; known are id, n, v"),
        ([{"id": 1}, {"id": 1, "n": []}], "all keys must have the same columns as the first key: id"),
        ([{"id": "x"}], "a value of the column id is not a valid int: "),
        ([{"id": 1 << 40}], "a value of the column id is not a valid int: "),
        ([{"n": 5}], "a value of the column n is not a valid frozen<list<int>>: "),
    ],
)
def test_a_key_that_cannot_be_is_refused_in_a_sentence(keys: Any, message: str) -> None:
    with pytest.raises(WritetimeError) as e:
        keys_table(keys, schema_of("frozen<list<int>>"))
    assert message in str(e.value)


def test_a_table_is_looked_up_by_any_column(tmp_path: Path) -> None:
    schema = parse_table("CREATE TABLE shop.items (id int, n int, v frozen<list<int>>, PRIMARY KEY (id, n))")
    made = new_table(tmp_path, schema)
    add(made, [write(1, 1, 1, v=[1, 2]), write(2, 1, 1, v=[2])], 1, schema)
    table = open_table("shop.items", settings_at(tmp_path))
    assert [row["id"] for row in table.lookup([{"v": [1, 2]}]).to_pylist()] == [1]
    assert table.lookup([{"id": 2, "n": 1, "v": [1, 2]}]).num_rows == 0
