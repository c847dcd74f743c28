"""A slice of an array, with or without nulls, counts like a separate array with its values, for each type.

Oracle: our own second path: the same function on a separate array.
"""

import random
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from tests.support.examples import rounds
from tests.support.made import batch, cell
from writetime.merge import merge
from writetime.merge.value_order import comparable, serialised
from writetime.schema.cql import parse_table
from writetime.schema.mapping import stored_type
from writetime.schema.types import parse_cql

# Two values of each type, in its order. None is an empty value, which the types of texts do not have.
VALUES: dict[str, tuple[Any, Any]] = {
    "ascii": ("a", "bb"),
    "bigint": (-1, 2),
    "blob": (b"\1", b"\1\2"),
    "boolean": (False, True),
    "date": (date(1969, 1, 1), date(2025, 6, 1)),
    "decimal": ("-2", "1.10"),
    "double": (-1.5, 2.0),
    "float": (-1.5, 2.0),
    "inet": ("10.0.0.1", "127.0.0.1"),
    "int": (-1, 2),
    "smallint": (-1, 2),
    "text": ("a", "\u00e9"),
    "time": (1, 2),
    "timestamp": (-1, 2),
    "timeuuid": ("00000000-0000-1000-8000-00000000000a", "00000001-0000-1000-8000-00000000000a"),
    "tinyint": (-1, 2),
    "uuid": ("00000000-0000-4000-8000-00000000000a", "ffffffff-0000-4000-8000-00000000000a"),
    "varint": ("-300", "12"),
    "frozen<list<timeuuid>>": ([None], ["00000000-0000-1000-8000-00000000000a"]),
    "frozen<map<int, date>>": ([(-1, date(2025, 6, 1))], [(2, None)]),
    "frozen<tuple<int, text>>": ({"_1": None, "_2": "a"}, {"_1": 2, "_2": "b"}),
    "vector<int, 2>": ([-1, 2], [2, -1]),
}
EACH_TYPE = pytest.mark.parametrize("name", VALUES)
ORDERS = pytest.mark.parametrize("order", [comparable, serialised], ids=lambda order: order.__name__)


def slices_of(count: int) -> list[slice]:
    return [slice(first, last) for first in range(count) for last in range(first + 1, count + 1)]


@EACH_TYPE
@ORDERS
@pytest.mark.parametrize("with_nulls", [False, True])
def test_slices_of_values(name: str, order: Callable[..., pa.Array], *, with_nulls: bool) -> None:
    cql_type = parse_cql(name)
    one, two = VALUES[name]
    values = [one, two, None, two, one, None] if with_nulls else [one, two, one, two]
    array = pa.array(values, stored_type(cql_type))
    for part in slices_of(len(values)):
        assert order(array[part], cql_type).equals(order(pa.array(values[part], array.type), cql_type)), part


def rows(name: str) -> list[dict[str, Any]]:
    """Changes of four rows, in which cells and elements of one write time and several values meet."""
    one, two = VALUES[name]
    found = []
    for number, (value, other) in enumerate([(one, None), (two, one), (None, two), (two, None)] * 2):
        id_ = number // 2
        elements = [{"path": p, **cell(None, 5)} for p in (None, other, value)]
        entries = [{"path": p, **cell(v, 5)} for p, v in ((None, value), (other, two), (value, other))]
        key = {"kind": "row", "id": id_, "key": bytes([0, 0, 0, id_]), "token": id_, "position": b"\x38"}
        columns = {"s": elements, "m": entries}
        complex_ = {c: {"tombstone": None, "elements": parts} for c, parts in columns.items()}
        found.append({**key, "marker": None, "v": cell(value, 5), **complex_})
    return found


@EACH_TYPE
def test_slices_of_changes(name: str) -> None:
    schema = parse_table(f"CREATE TABLE ks.t (id int PRIMARY KEY, v {name}, s set<{name}>, m map<{name}, {name}>)")
    whole = pa.Table.from_batches([batch(rows(name), schema)])
    slices = slices_of(len(whole))
    for part in random.Random(name).sample(slices, rounds(len(slices))):
        state = merge([whole[part]], schema)
        state.validate(full=True)
        wanted = merge([pa.Table.from_batches([batch(rows(name)[part], schema)])], schema)
        assert state.equals(wanted), part
