"""Rows as lines of JSON: whole columns give the same text as single values.

Oracle: our own second path: the printing of single values. Only the expected texts of some values are written in the
test.
"""

import math
import random
from typing import Any

import pyarrow as pa
import pytest

from tests.support.generate import SEED
from writetime.core.printing import json_line, json_lines

_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1
_VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [0, _LEAST, _GREATEST]),
    "int8": (pa.int8(), [-128, 127]),
    "bool": (pa.bool_(), [True, False]),
    "double": (pa.float64(), [0.0, -0.0, 1e300, 5e-324]),
    "double that is not finite": (pa.float64(), [1.5, math.inf, -math.inf, math.nan]),
    "float": (pa.float32(), [0.1, 3.4e38]),
    "text": (pa.string(), ["", "\u00e9", '"\\\n', "\0", "\U0001f600"]),
    "large text": (pa.large_string(), ["a"]),
    "bytes": (pa.binary(), [b"", b"\0\xff"]),
    "large bytes": (pa.large_binary(), [b"a"]),
    "date": (pa.date32(), [0, -719_162, 2_932_896, (1 << 31) - 1, -(1 << 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), [0, -1, 1_767_225_600_123_456, _LEAST + 1, _GREATEST]),
    "time": (pa.time64("ns"), [0, 86_399_999_999_000]),
    "list": (pa.list_(pa.int32()), [[], [1, None]]),
    "list of bytes": (pa.list_(pa.binary()), [[b"a"], None]),
    "map": (pa.map_(pa.string(), pa.float64()), [[("a", math.nan)], []]),
    "map of numbers": (pa.map_(pa.int32(), pa.string()), [[(1, "a")]]),
    "struct": (pa.struct([("a", pa.int32()), ("t", pa.timestamp("us"))]), [{"a": 1, "t": 5}, {"a": None, "t": None}]),
    "null": (pa.null(), []),
}


def column(kind: str, count: int, chooser: random.Random) -> pa.Array:
    arrow, values = _VALUES[kind]
    return pa.array([chooser.choice([*values, None]) for _ in range(count)], arrow)


def same(rows: pa.Table) -> None:
    wanted = [json_line({name: rows[name][i] for name in rows.column_names}) for i in range(rows.num_rows)]
    assert b"".join(json_lines(rows)).splitlines() == wanted


@pytest.mark.parametrize("kind", list(_VALUES))
def test_columns_are_printed_as_their_values(kind: str) -> None:
    chooser = random.Random(SEED)
    values = column(kind, 50, chooser)
    for array in (values, values.slice(7, 30), values.slice(0, 0), values.drop_null()):
        same(pa.table({"a name": array}))


def test_rows_of_all_types() -> None:
    chooser = random.Random(SEED)
    rows = pa.table({kind: column(kind, 40, chooser) for kind in _VALUES})
    same(rows)
    same(pa.concat_tables([rows, rows.slice(3, 5)]))
