"""The expiries that the footer of a file shows, for each place where a TTL may be."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from writetime.delta.parquet import without_empty
from writetime.files.expiries import expiry_bounds

_TYPES = [("ttl", pa.int32()), ("deletion_time", pa.int64())]
CELL = pa.struct([("value", pa.string()), *_TYPES])
LIST = pa.struct([("elements", pa.list_(pa.field("element", CELL)))])
UDT = pa.struct([("fields", pa.struct([("ttl", CELL)]))])
MARKER = pa.struct([("ttl", pa.int32()), ("expiry", pa.int64()), ("deletion_time", pa.int64())])


def cell(ttl: int | None, ends: int | None) -> dict[str, Any]:
    """A cell."""
    return {"value": "a", "ttl": ttl, "deletion_time": ends}


def bounds(path: Path, column: pa.Array, **options: Any) -> tuple[int, int] | None:
    """The bounds of a file with one column, written as the lake's files are."""
    table = pa.table({"ttl": pa.array([7] * len(column), pa.int32()), "c": column})
    pq.write_table(without_empty(table), path, row_group_size=1, **options)
    with pq.ParquetFile(path) as file:
        return expiry_bounds(file)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (CELL, [cell(5, 30), cell(None, None), cell(5, 10)]),
        (LIST, [{"elements": [cell(5, 30), cell(5, 10)]}, None, {"elements": []}]),
        (UDT, [{"fields": {"ttl": cell(5, 10)}}, {"fields": None}, {"fields": {"ttl": cell(5, 30)}}]),
        (MARKER, [{"ttl": 5, "expiry": 30}, {"ttl": 5, "expiry": 10}, None]),
    ],
)
def test_of_data_with_a_ttl(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, kind)
    assert bounds(tmp_path / "a", column) == (10, 30)
    # Without statistics, nothing is known.
    first, last = bounds(tmp_path / "b", column, write_statistics=False) or (0, 0)
    assert first < -(10**15)
    assert last > 10**15


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (CELL, [cell(None, None), None]),
        # Tombstones have a time of deletion, and no TTL.
        (CELL, [cell(None, 30)]),
        (LIST, [{"elements": [cell(None, 30)]}, None]),
        (UDT, [{"fields": {"ttl": cell(None, None)}}]),
        (MARKER, [{"ttl": None, "expiry": None}, None]),
    ],
)
def test_of_data_without_a_ttl(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    assert bounds(tmp_path / "a", pa.array(values, kind)) is None
