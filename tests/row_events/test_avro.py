"""Avro messages, read by another library: each type, and the changing schema of a table's events.

Oracle: another Avro library.
"""

import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import generated
from tests.support.avro import as_avro, numbers, plain
from tests.support.examples import is_long_run
from tests.support.generate import Generator
from writetime.core.format_version import FORMAT_VERSION
from writetime.lake.projection import EventBatch
from writetime.merge import merge
from writetime.row_events.events import fitted_rows, row_events
from writetime.row_events.messages import encode_events, event_avro
from writetime.schema.avro import encode
from writetime.schema.fingerprints import fingerprint
from writetime.schema.mapping import arrow_type, avro_type
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, parse_cql
from writetime.wire.change_messages import change_avro

EXAMPLES = settings(max_examples=150 if is_long_run() else 15)


def values(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    """Values in the form that Arrow accepts: dates and times are numbers."""
    if pa.types.is_struct(arrow):
        optional = not {"months", "days", "nanoseconds"} <= {f.name for f in arrow}
        return st.fixed_dictionaries(
            {f.name: st.none() | values(f.type) if optional else values(f.type) for f in arrow}
        )
    if pa.types.is_map(arrow):
        return st.lists(st.tuples(values(arrow.key_type), st.none() | values(arrow.item_type)), max_size=3)
    if pa.types.is_list(arrow):
        element = arrow.value_type
        # A map whose keys hold maps is a list of its entries, of which none is null.
        is_entry = pa.types.is_struct(element) and [f.name for f in element] == ["key", "value"]
        return st.lists(values(element) if is_entry else st.none() | values(element), max_size=3)
    if pa.types.is_boolean(arrow):
        return st.booleans()
    if pa.types.is_floating(arrow):
        return st.floats(allow_nan=False, width=32 if arrow.bit_width == 32 else 64)
    if pa.types.is_string(arrow):
        return st.text(st.characters(codec="utf-8"), max_size=70)
    if pa.types.is_binary(arrow):
        return st.binary(max_size=70)
    return st.integers(-(1 << arrow.bit_width - 1), (1 << arrow.bit_width - 1) - 1)


def assert_read_as_written(cql_type: CqlType, wanted: list[Any]) -> None:
    arrow = arrow_type(cql_type)
    array = pa.array([None, *wanted], numbers(arrow)).cast(arrow).slice(1)
    avro = ["null", avro_type(cql_type, "f", "n")]
    schema = fastavro.parse_schema(json.loads(json.dumps(plain(avro))))
    for value, data in zip(wanted, encode(array, avro).to_pylist(), strict=True):
        stream = io.BytesIO(data)
        assert fastavro.schemaless_reader(stream, schema, None) == as_avro(value, arrow)
        assert not stream.read()


@given(st.integers(0, 2**32), st.data())
@EXAMPLES
def test_values_of_every_type(seed: int, data: st.DataObject) -> None:
    cql_type = Generator(seed).cql_type(3)
    assert_read_as_written(cql_type, data.draw(st.lists(st.none() | values(arrow_type(cql_type)), max_size=5)))


def test_numbers_at_the_ends_of_their_ranges() -> None:
    for bits, name in ((8, "tinyint"), (16, "smallint"), (32, "int"), (64, "bigint")):
        edge = 1 << bits - 1
        assert_read_as_written(Native(name), [-edge, -edge + 1, -64, -65, -1, 0, 63, 64, edge - 1])
    assert_read_as_written(parse_cql("list<int>"), [[], [1] * 200, None, []])


def test_the_fingerprint_is_that_of_apache_avro() -> None:
    """The number is that of `SchemaNormalization.parsingFingerprint64` in Avro 1.12.1 for Java."""
    inner = {"type": "record", "name": "part_2", "fields": []}
    part = {"type": "record", "name": "rows.shop.a_x2d_b.tags.part", "fields": []}
    part["fields"] = [{"name": "n", "type": ["null", "int"]}, {"name": "inner", "type": inner}]
    tags = {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}}
    row = {"type": "record", "name": "row", "fields": [tags, {"name": "part", "type": part}]}
    at = {"type": "long", "logicalType": "timestamp-micros"}
    fields = [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}, "doc": "not part of the canonical form"},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["CREATE", "DELETE"]}},
        {"name": "at", "type": ["null", at], "default": None},
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "row"], "default": None},
    ]
    schema = {"type": "record", "name": "event", "namespace": "rows.shop.a_x2d_b", "cql": "nor this", "fields": fields}
    assert fingerprint(schema) == 0xD5A7496E7939F1A4


def test_the_schema_of_events_has_the_version_of_their_format() -> None:
    """The fingerprint, and so each message, is the same without it."""
    avro = event_avro(generated.SCHEMA)
    assert avro["format"] == FORMAT_VERSION
    assert fingerprint(avro) == fingerprint({name: value for name, value in avro.items() if name != "format"})


@given(st.lists(generated.change(), min_size=1, max_size=8), st.lists(generated.change(), max_size=5))
@EXAMPLES
def test_events_read_back(first: list[generated.Change], second: list[generated.Change]) -> None:
    schema = generated.SCHEMA
    old = merge([generated.table(first)], schema)
    new = merge([old, generated.table(second)], schema)
    before, after = (fitted_rows(state, schema, 100_000_000) for state in (old, new))
    events = row_events(before, after, schema, EventBatch(2, 7, 100_000_000))
    avro = fastavro.parse_schema(json.loads(json.dumps(plain(event_avro(schema)))))
    for batch in events.to_batches():
        for wanted, data in zip(events.to_pylist(), encode_events(batch, schema).to_pylist(), strict=True):
            assert data[:2] == b"\xc3\x01"
            found = fastavro.schemaless_reader(io.BytesIO(data[10:]), avro, None)
            rows = {n: as_avro(wanted[n], events.schema.field(n).type) for n in ("before", "after")}
            assert found == wanted | {"as_of": 100_000_000} | rows


def test_a_newer_schema_reads_older_messages() -> None:
    schema = replace(generated.SCHEMA, static=())
    keys = [f["type"] for f in event_avro(schema)["fields"][-2]["type"][1]["fields"][:3]]
    assert keys == ["int", "string", "int"]
    newer = replace(schema, static=(Column("s", Native("int")),), regular=(Column("new", Native("text")),))
    state = merge([], schema)
    row = {"p": 1, "c": "1", "d": 0, "kind": "row", "key": b"\0\0\0\1", "token": 5, "position": b"@"}
    row |= {"marker": {"write_time": 1}, "i": {"value": 4, "write_time": 1, "tombstone": False}}
    full = merge([pa.Table.from_pylist([row], merge([], schema).schema)], schema)
    events = row_events(fitted_rows(state, schema, 1), fitted_rows(full, schema, 1), schema, EventBatch(0, 1, 1))
    data = encode_events(events.to_batches()[0], schema).to_pylist()[0]
    written, reads = (fastavro.parse_schema(json.loads(json.dumps(plain(event_avro(s))))) for s in (schema, newer))
    found = fastavro.schemaless_reader(io.BytesIO(data[10:]), written, reads)
    assert found["after"] == {"p": 1, "c": "1", "d": 0, "s": None, "new": None}  # type: ignore[index]


# Names of fields that lead to one name of a record, such as that of `b_c` in `a` and of `c` in `a_b`.
FIELD_NAMES = ("a", "b", "a_b", "b_c", "c", "key", "value", "entry", "1", "2", "element", "duration", "a_2", "A")


@st.composite
def nested_types(draw: st.DrawFn, depth: int = 3) -> CqlType:
    """Types with records inside of records."""
    kind = draw(st.sampled_from(("native", "udt", "udt", "tuple", "map", "list"))) if depth else "native"
    if kind == "native":
        return Native(draw(st.sampled_from(("int", "duration"))))
    if kind == "udt":
        names = draw(st.lists(st.sampled_from(FIELD_NAMES), min_size=1, max_size=3, unique=True))
        return Udt("k", "u", tuple((name, draw(nested_types(depth - 1))) for name in names), frozen=True)
    inner = [draw(nested_types(depth - 1)) for _ in range(2)]
    match kind:
        case "tuple":
            return Tuple(tuple(inner))
        case "map":
            return Collection("map", tuple(inner), frozen=True)
    return Collection("list", (inner[0],), frozen=True)


def of(**fields: CqlType) -> CqlType:
    """A type with fields."""
    return Udt("k", "u", tuple(fields.items()), frozen=True)


@given(nested_types(), nested_types())
@EXAMPLES
@example(of(a=of(b_c=of(d=Native("int"))), a_b=of(c=of(e=Native("int")))), Native("int"))
@example(of(a=Native("duration"), a_duration=of(a=Native("int"))), Native("int"))
@example(
    of(entry=of(a=Native("int")), b=Collection("map", (Native("int"), of(a=Native("int"))), frozen=True)), Native("int")
)
def test_no_two_records_have_one_name(one: CqlType, other: CqlType) -> None:
    columns = (Column("a", one), Column("a_b", other))
    schema = TableSchema("k", "t", (Column("k", Native("int")),), (Column("c", one),), regular=columns)
    for avro in (change_avro(schema), event_avro(schema)):
        fastavro.parse_schema(json.loads(json.dumps(plain(avro))))
