"""Connect's schemas and JSON of every type, read by another library.

Oracle: another library's reader of Connect's schemas and JSON.
"""

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.connect_values import as_connect, column, values
from tests.support.examples import examples
from tests.support.generate import Generator
from writetime.schema.connect import JsonEncoder, connect_type
from writetime.schema.types import CqlType, Native, parse_cql

EXAMPLES = examples(80)
_KINDS = {"string": str, "bytes": str, "boolean": bool, "map": dict, "array": list, "struct": dict}


def assert_of_schema(value: Any, schema: dict[str, Any]) -> None:
    """Check that JSON has the form that its Connect schema gives."""
    if value is None:
        assert schema["optional"]
        return
    assert isinstance(value, _KINDS.get(schema["type"], float if schema["type"] in ("float", "double") else int))
    if schema["type"] == "struct":
        assert list(value) == [field["field"] for field in schema["fields"]]
        for field in schema["fields"]:
            assert_of_schema(value[field["field"]], field)
    elif schema["type"] == "map":
        for part in value.values():
            assert_of_schema(part, schema["values"])
    elif schema["type"] == "array":
        for part in value:
            assert_of_schema(part, schema["items"])


def encoded(cql_type: CqlType, found: list[Any], *, with_schema: bool = True, one_form: bool = False) -> list[str]:
    return JsonEncoder(with_schema, canonical=one_form).encode(column(cql_type, found), cql_type).to_pylist()


@pytest.mark.parametrize("with_schema", [True, False])
@given(seed=st.integers(0, 2**32), data=st.data())
@EXAMPLES
def test_values_of_every_type(seed: int, data: st.DataObject, with_schema: bool) -> None:
    cql_type = Generator(seed).cql_type(3)
    wanted = data.draw(st.lists(st.none() | values(cql_type), max_size=5))
    for value, text in zip(wanted, encoded(cql_type, wanted, with_schema=with_schema), strict=True):
        found = json.loads(text)
        assert found == as_connect(value, cql_type, with_schema=with_schema)
        if with_schema:
            assert_of_schema(found, connect_type(cql_type))


def test_the_types_of_debezium_for_cassandra() -> None:
    """The table "Data types" of its documentation, where no value is lost."""
    documented = {
        **dict.fromkeys(("ascii", "inet", "text"), ("string", None)),
        **dict.fromkeys(("bigint", "counter"), ("int64", None)),
        **dict.fromkeys(("uuid", "timeuuid"), ("string", "io.debezium.data.Uuid")),
        "blob": ("bytes", None),
        "boolean": ("boolean", None),
        "date": ("int32", "io.debezium.time.Date"),
        "float": ("float", None),
        "double": ("double", None),
        "int": ("int32", None),
        "smallint": ("int16", None),
        "tinyint": ("int8", None),
        "timestamp": ("int64", "io.debezium.time.Timestamp"),
        "list<int>": ("array", None),
        "set<int>": ("array", None),
        "map<text, int>": ("map", None),
        # By `decimal.handling.mode=string` and `varint.handling.mode=string`.
        "decimal": ("string", None),
        "varint": ("string", None),
    }
    for name, wanted in documented.items():
        found = connect_type(parse_cql(name))
        assert (found["type"], found.get("name")) == wanted


def test_numbers_keep_their_value_and_kind() -> None:
    floats = [1.0, -0.0, 1e20, 5e-324, 0.1, 123456789.0, -(2.0**63)]
    texts = encoded(Native("double"), floats)
    assert texts[:3] == ["1.0", "-0.0", "1e+20"]
    assert [json.loads(text) for text in texts] == floats
    single = [float(np.float32(v)) for v in (0.1, 3.4028235e38, 16777216.0)]
    assert [np.float32(text) for text in encoded(Native("float"), single)] == [np.float32(v) for v in single]
    assert encoded(Native("bigint"), [-(1 << 63), (1 << 63) - 1]) == [str(-(1 << 63)), str((1 << 63) - 1)]


@given(values(Native("decimal")), values(Native("decimal")))
@EXAMPLES
@example("1.10", "1.1")
@example("0.00", "0E+5")
def test_equal_decimals_have_one_form(one: str, other: str) -> None:
    forms = [json.loads(text) for text in encoded(Native("decimal"), [one, other], one_form=True)]
    assert [Decimal(form) for form in forms] == [Decimal(one), Decimal(other)]
    assert (forms[0] == forms[1]) == (Decimal(one) == Decimal(other))
