"""Changes of a small table, made by hypothesis. There are few keys, times and values, so that most changes conflict."""

import struct
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from writetime.changes.model import GLOBAL, REMOTE, change_schema, field_name, udt_fields
from writetime.changes.position import AFTER, AT, BEFORE, PARTITION_POSITION, STATIC_POSITION, position_encoder
from writetime.schema.cql import parse_table
from writetime.schema.serialise import serialiser
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, Native, is_complex
from writetime.storage.kernel.primitives import token

SCHEMA = parse_table("""
    CREATE TYPE k.pair (x int, y text);
    CREATE TABLE k.t (
        p int, c decimal, d int,
        s int static, sm map<int, int> static,
        i int, t text, z decimal, f frozen<list<int>>, u pair, l list<int>, e set<decimal>, m map<text, int>,
        PRIMARY KEY (p, c, d)
    ) WITH CLUSTERING ORDER BY (c DESC, d ASC)
""")
COUNTERS = parse_table("""
    CREATE TABLE k.counters (
        p int, c decimal, d int, s counter static, n counter, m counter, PRIMARY KEY (p, c, d)
    ) WITH CLUSTERING ORDER BY (c DESC, d ASC)
""")
VALUES: dict[str, list[Any]] = {
    "int": [None, -1, 0, 1],
    "text": ["", "a", "b", "\u00e9"],
    "decimal": ["1", "1.0", "-1", None],
    "timeuuid": ["00000000-0000-1000-8000-00000000000a", "00000001-0000-1000-8000-00000000000a"],
}
NODES = ("00000000-0000-4000-8000-00000000000a", "ffffffff-0000-4000-8000-00000000000a")
WRITE_TIMES = st.integers(-1, 6)
SECONDS = st.integers(100, 103)
ENCODE = position_encoder(SCHEMA.clustering)

Change = dict[str, Any]


def value(cql_type: CqlType) -> st.SearchStrategy[Any]:
    if isinstance(cql_type, Collection):
        return st.lists(value(cql_type.arguments[0]), max_size=2)
    assert isinstance(cql_type, Native)
    return st.sampled_from(VALUES[cql_type.name])


@st.composite
def cell(draw: st.DrawFn, cql_type: CqlType | None) -> Change:
    kind = draw(st.sampled_from(["live", "live", "expiring", "tombstone"]))
    made: Change = {
        "write_time": draw(WRITE_TIMES),
        "ttl": None,
        "deletion_time": None,
        "tombstone": kind == "tombstone",
    }
    if kind != "live":
        made["deletion_time"] = draw(SECONDS)
    if kind == "expiring":
        made["ttl"] = draw(st.integers(1, 2))
    if cql_type is not None:
        made["value"] = None if kind == "tombstone" else draw(value(cql_type))
    return made


@st.composite
def counter(draw: st.DrawFn) -> Change:
    """A cell of a counter: shards of one write, which share its time, or a tombstone."""
    if draw(st.integers(0, 3)) == 0:
        return {"write_time": draw(WRITE_TIMES), "deletion_time": draw(SECONDS), "tombstone": True}
    at = draw(WRITE_TIMES)
    kinds = st.sampled_from([GLOBAL, GLOBAL, REMOTE])
    # Clocks of 0 are never written, and remote ones with them are not ordered.
    clocks = st.sampled_from([-1, 1, 2, 3])
    counts = st.sampled_from([-5, 3, (1 << 63) - 1])
    shards = [
        {"id": node, "kind": draw(kinds), "clock": draw(clocks), "count": draw(counts), "write_time": at}
        for node in draw(st.lists(st.sampled_from(NODES), unique=True))
    ]
    return {"write_time": at, "tombstone": False, "value": None, "shards": shards}


@st.composite
def tombstone(draw: st.DrawFn) -> Change:
    return {"write_time": draw(WRITE_TIMES), "deletion_time": draw(SECONDS)}


def key_values(name: str) -> st.SearchStrategy[Any]:
    return st.sampled_from([v for v in VALUES[name] if v is not None])


@st.composite
def column(draw: st.DrawFn, cql_type: CqlType) -> Change:
    if cql_type == Native("counter"):
        return draw(counter())
    if not is_complex(cql_type):
        return draw(cell(cql_type))
    made: Change = {"tombstone": draw(st.none() | tombstone())}
    if not isinstance(cql_type, Collection):
        made["fields"] = {n: draw(st.none() | cell(t)) for n, t in udt_fields(cql_type)}
        return made
    path = Native("timeuuid") if cql_type.kind == "list" else cql_type.arguments[0]
    assert isinstance(path, Native)
    content = None if cql_type.kind == "set" else cql_type.arguments[-1]
    paths = draw(st.lists(key_values(path.name), max_size=2, unique=True))
    made["elements"] = [{"path": p, **draw(cell(content))} for p in paths]
    return made


@st.composite
def change(draw: st.DrawFn, schema: TableSchema = SCHEMA) -> Change:
    # Counters meet in one row, as more has to come together for them to differ.
    alone = schema is COUNTERS
    # The tokens of 1 and 3 are in different buckets.
    p = 1 if alone else draw(st.sampled_from([1, 3]))
    key = struct.pack(">i", p)
    made: Change = {"p": p, "key": key, "token": token(key)}
    kind = draw(st.sampled_from(["row", "row", "row", "static", "range_tombstone", "partition_tombstone"]))
    made["kind"] = kind
    if kind == "partition_tombstone":
        return made | {"position": PARTITION_POSITION, "tombstone": draw(tombstone())}
    if kind == "range_tombstone":
        start, end = sorted([draw(bound()), draw(bound())])
        return made | {"position": start, "end": end, "tombstone": draw(tombstone())}
    columns = schema.static if kind == "static" else schema.regular
    for c in draw(st.lists(st.sampled_from(columns), max_size=3, unique=True)):
        made[field_name(c)] = draw(column(c.type))
    if kind == "static":
        return made | {"position": STATIC_POSITION}
    made["c"] = draw(st.sampled_from(["1", "1.0"]) if alone else key_values("decimal"))
    made["d"] = 0 if alone else draw(st.integers(0, 1))
    made["position"] = ENCODE(_serialised(made["c"], made["d"]), AT)
    if not alone and draw(st.booleans()):
        ttl = draw(st.none() | st.sampled_from([1, 2, (1 << 31) - 1]))
        expiry = None if ttl is None else draw(SECONDS)
        made["marker"] = {"write_time": draw(WRITE_TIMES), "ttl": ttl, "expiry": expiry}
    if draw(st.integers(0, 3)) == 0:
        made["tombstone"] = draw(tombstone())
    return made


@st.composite
def bound(draw: st.DrawFn) -> bytes:
    values = [draw(key_values("decimal")), draw(st.integers(0, 1))][: draw(st.integers(0, 2))]
    return ENCODE(_serialised(*values), draw(st.sampled_from([BEFORE, AFTER])))


def _serialised(*values: Any) -> list[bytes]:
    return [serialiser(c.type)(v) for c, v in zip(SCHEMA.clustering, values, strict=False)]


def table(changes: list[Change], schema: TableSchema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(changes, change_schema(schema))
