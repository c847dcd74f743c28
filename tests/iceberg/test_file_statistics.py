"""The bounds of columns let a reader skip files, and never rows that it wants.

Oracle: Arrow filters the rows.
"""

from typing import Any

import pyarrow as pa
import pytest

from tests.support.iceberg_tables import AS_OF, published
from writetime.core.arrow import pc
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.parquet import write_file
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.iceberg.publication import IcebergTable

TYPES: dict[str, pa.DataType] = {
    "tiny": pa.int8(),
    "number": pa.int64(),
    "text": pa.string(),
    "raw": pa.binary(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "real": pa.float64(),
    "flag": pa.bool_(),
}
# Each row is a file.
VALUES: dict[str, list[list[Any]]] = {
    "tiny": [[-128, 0], [None, 1], [2, 127]],
    "number": [[-(1 << 63), -1], [None, None], [0, (1 << 63) - 1]],
    "text": [["", "a" * 40], ["a" * 16 + "b", "é" * 20], ["\U0001f600", "\uffff" * 20]],
    "raw": [[b"", b"\xff" * 40], [b"a" * 20, b"b"], [None, b"\x00"]],
    "day": [[-3000, 0], [1, 2], [None, 40000]],
    "at": [[-(10**12), -1], [0, 1], [None, 10**15]],
    "real": [[-1.5, float("nan")], [0.0, -0.0], [None, 1e300]],
    "flag": [[True, True], [False, True], [None, False]],
}
# The code point after U+D7FF is a surrogate, which UTF-8 does not have.
VALUES = {name: [*values, [None, None]] for name, values in VALUES.items()}
VALUES["text"][3] = ["\ud7ff" * 20, "\ud7ff" * 15 + "\U0010ffff" * 5]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> BucketedTable:
    made = BucketedTable(Storage(str(tmp_path_factory.mktemp("lake") / "shop.items" / "view")))
    schema = pa.schema(list(TYPES.items()))
    made.create(schema, 4, {})
    rows = [pa.table({name: pa.array(VALUES[name][i], kind) for name, kind in TYPES.items()}) for i in range(4)]
    files = [write_file(made.storage, each, 0, None) for each in rows]
    made.commit(made.load(), TableChange(add=files), {AS_OF: 1})
    IcebergTable(made, AS_OF).publish()
    return made


@pytest.mark.parametrize("name", TYPES)
def test_no_row_is_skipped(table: BucketedTable, name: str) -> None:
    opened = published(table.storage.address)
    column = pa.chunked_array(VALUES[name], TYPES[name])
    for value in {each for values in VALUES[name] for each in values if each is not None and each == each}:
        literal = pa.scalar(value, TYPES[name])
        for sign, function in (("==", pc.equal), (">=", pc.greater_equal), ("<", pc.less)):
            wanted = pc.sum(function(column, literal)).as_py() or 0
            found = opened.scan(row_filter=_filter(name, sign, literal)).count()
            assert found == wanted, (name, sign, value)


def _filter(name: str, sign: str, literal: pa.Scalar) -> Any:
    from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, LessThan

    kinds = {"==": EqualTo, ">=": GreaterThanOrEqual, "<": LessThan}
    value = literal.as_py()
    return kinds[sign](name, value.isoformat() if name in {"day", "at"} else value)


def test_files_are_skipped(table: BucketedTable) -> None:
    opened = published(table.storage.address)
    counts = {
        condition: len(list(opened.scan(row_filter=condition).plan_files()))
        for condition in ("tiny > 1", "text == 'zz'", "number IS NULL", "at < '1970-01-01T00:00:00+00:00'")
    }
    assert counts == {"tiny > 1": 1, "text == 'zz'": 1, "number IS NULL": 2, "at < '1970-01-01T00:00:00+00:00'": 1}
