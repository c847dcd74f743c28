"""Positions of many rows at once.

Oracle: our own second path, `changes.position`: tests/changes compares it with the database's order.
"""

import random

import pyarrow as pa
import pytest

from tests.support.generate import SEED
from writetime.changes.position import AT, position_encoder
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import CqlType, Native, parse_cql
from writetime.storage.positions import row_positions

SIZES = {"bigint": 8, "boolean": 1, "date": 4, "double": 8, "float": 4, "int": 4, "smallint": 2, "time": 8}
SIZES |= {"timestamp": 8, "timeuuid": 16, "tinyint": 1, "uuid": 16}
BYTES = ("ascii", "blob", "inet", "text")
ROWS = 300


def value(r: random.Random, cql_type: CqlType) -> bytes | None:
    if r.random() < 0.2:
        return r.choice([None, b""])
    size = SIZES.get(str(cql_type), r.randrange(6))
    # Zeros and bytes with a sign have rules of their own.
    return bytes(r.choice([0, 0, 0x7F, 0x80, 0xC0, 0xFF, r.randrange(256)]) for _ in range(size))


@pytest.mark.parametrize("names", [(), *((name,) for name in (*SIZES, *BYTES)), ("int", "text", "uuid"), ("varint",)])
def test_rows(names: tuple[str, ...]) -> None:
    r = random.Random(f"{SEED} {names}")
    clustering = tuple(Column(f"c{i}", parse_cql(name), reversed=r.random() < 0.5) for i, name in enumerate(names))
    schema = TableSchema("k", "t", (Column("k", Native("int")),), clustering, (), ())
    rows = [tuple(value(r, column.type) for column in clustering) for _ in range(ROWS)]
    arrays = [pa.array([row[i] for row in rows], pa.binary()) for i in range(len(clustering))]
    encode = position_encoder(clustering)
    expected = [encode(row, AT) for row in rows]
    assert row_positions(arrays, ROWS, schema).to_pylist() == expected
    some = [each.slice(7, 100) for each in arrays]
    assert row_positions(some, 100, schema).to_pylist() == expected[7:107]
    assert row_positions([each.slice(0, 0) for each in arrays], 0, schema).to_pylist() == []
