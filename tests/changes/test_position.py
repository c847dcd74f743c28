"""Positions in the order of the database: clusterings and bounds sorted by its comparator are sorted as bytes.

Oracle: the database's own comparator, on the same values.
"""

import itertools
from collections.abc import Iterator
from uuid import NAMESPACE_OID, uuid5

import numpy as np
import pytest

from tests.support import oracle
from tests.support.generate import KEYSPACE, SCALARS, SEED, UDTS, Generator
from tests.support.value_forms import forms
from writetime.changes.position import AFTER, AT, BEFORE, position_encoder
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, Tuple, Vector, freeze
from writetime.storage.kernel.primitives import COMPARE_OTHER, encode_comparable
from writetime.storage.plan import Plan

pytestmark = pytest.mark.slow

VALUES = 40
ENDS = {
    "CLUSTERING": AT,
    "INCL_START_BOUND": BEFORE,
    "EXCL_END_BOUND": BEFORE,
    "EXCL_START_BOUND": AFTER,
    "INCL_END_BOUND": AFTER,
}
# Clients of different languages and processors write different forms of not-a-number.
NOT_NUMBERS = {
    "double": ["7ff8000000000000", "7ff8000000000001", "fff8000000000000", "7ff0000000000001"],
    "float": ["7fc00000", "7fc00001", "ffc00000", "ff800001"],
}
# The database refuses empty values of these.
NEVER_EMPTY = ("date", "smallint", "time", "tinyint")


def table(name: str, types: list[tuple[CqlType, bool]]) -> TableSchema:
    clustering = tuple(Column(f"c{i}", t, reversed_) for i, (t, reversed_) in enumerate(types))
    key = (Column("k", Native("int")),)
    return TableSchema(KEYSPACE, name, key, clustering, id=uuid5(NAMESPACE_OID, name))


def tables(generator: Generator) -> list[TableSchema]:
    scalars = [Native(name) for name in SCALARS if name != "duration"]
    found = [
        table(f"{t.name}_{'desc' if reversed_ else 'asc'}", [(t, reversed_)])
        for t in scalars
        for reversed_ in (False, True)
    ]
    for i in range(12):
        types = [(generator.cql_type(2, key=True), generator.random.random() < 0.5) for _ in range(3)]
        found.append(table(f"mixed{i}", types))
    return found


def prefixes(generator: Generator, schema: TableSchema) -> Iterator[list[str]]:
    """Clusterings and bounds of few values in each place, so that they share prefixes."""
    r = generator.random
    columns = schema.clustering
    pools: list[list[str]] = []
    for column in columns:
        values = [generator.literal(column.type, key=True) for _ in range(VALUES if len(columns) == 1 else 5)]
        if isinstance(column.type, Native) and column.type.name not in NEVER_EMPTY:
            values.append("empty")
            values += [f"blobas{column.type}(0x{data})" for data in NOT_NUMBERS.get(column.type.name, [])]
        pools.append([*values, "null"])
    for _ in range(VALUES):
        yield [schema.keyspace, schema.name, "CLUSTERING", *(r.choice(pool) for pool in pools)]
        kind = r.choice([kind for kind in ENDS if kind != "CLUSTERING"])
        count = r.randint(0, len(columns))
        yield [schema.keyspace, schema.name, kind, *(r.choice(pool) for pool in pools[:count])]


def kernel_encoded(schema: TableSchema, place: int, data: bytes) -> bytes | None:
    line = Plan(schema).clustering[place]
    if line.compare == COMPARE_OTHER:
        return None
    value = np.frombuffer(data + b"\0", np.uint8)
    out = np.empty(2 * len(data) + 3, np.uint8)
    end = encode_comparable(line.compare, line.reverse, value.ctypes.data, len(data), out.ctypes.data)
    return out[: end - out.ctypes.data].tobytes()


def test_positions_are_in_the_order_of_the_database() -> None:
    generator = Generator(21 + SEED)
    schemas = tables(generator)
    lines = oracle.order(schemas, UDTS.values(), [p for schema in schemas for p in prefixes(generator, schema)])
    by_name = {schema.name: schema for schema in schemas}
    compared = 0
    for name, group in itertools.groupby(lines, key=lambda line: line["table"]):
        schema = by_name.pop(name)
        encode = position_encoder(schema.clustering)
        before: tuple[int, bytes] | None = None
        for line in group:
            values = [None if v is None else bytes.fromhex(v) for v in line["values"]]
            position = encode(values, ENDS[line["kind"]])
            if before is not None:
                assert (before[0] == line["rank"]) == (before[1] == position), (name, line)
                assert before[1] <= position, (name, line)
            before = line["rank"], position
            compared += 1
            for place, value in enumerate(values):
                encoded = None if value is None else kernel_encoded(schema, place, value)
                if encoded is not None:
                    only = position_encoder(schema.clustering[place : place + 1])([value], b"")
                    assert encoded == only, (name, line)
    assert not by_name
    print(f"{compared} positions compared")


def odd_types(generator: Generator) -> list[CqlType]:
    """Types of clusterings with parts, which may be null, empty or missing."""
    whole, text, number = Native("int"), Native("text"), Native("double")
    pair, keyed = Tuple((whole, text)), freeze(Collection("map", (Tuple((whole, text)), number)))
    found: list[CqlType] = [Native(name) for name in SCALARS if name != "duration"]
    found += [pair, Tuple((whole,)), Tuple((pair, Native("varint"))), *map(freeze, UDTS.values()), keyed]
    found += [freeze(Collection(kind, (of,))) for kind in ("list", "set") for of in (whole, number, pair)]
    found += [Vector(number, 2), Vector(text, 2), Vector(Native("varint"), 2), Vector(pair, 1)]
    return found + [generator.cql_type(3, key=True) for _ in range(20)]


def test_positions_distinguish_the_bytes_that_the_database_does() -> None:
    generator = Generator(22 + SEED)
    schemas, pairs = [], []
    for n, cql_type in enumerate(odd_types(generator)):
        for reversed_ in (False, True):
            schemas.append(table(f"t{n}_{reversed_}", [(cql_type, reversed_)]))
            values = forms(cql_type, generator.random)
            pairs += [(schemas[-1].full_name, one, other) for one in values for other in values]
    encoders = {schema.full_name: position_encoder(schema.clustering) for schema in schemas}
    for (name, *values), sign in zip(pairs, oracle.compared(schemas, UDTS.values(), pairs), strict=True):
        one, other = (encoders[name]([value], AT) for value in values)
        assert (one > other) - (one < other) == sign, (name, values)
