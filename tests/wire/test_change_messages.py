"""Changes as Avro, compared with another library both ways: all types, changing schemas, broken messages.

Oracle: another Avro library, both ways.
"""

import io
import json
import random
import uuid
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import generated
from tests.support.avro import as_avro, before_milliseconds, made, numbers, plain
from tests.support.examples import examples, rounds, some
from tests.support.generate import UDTS, Generator
from writetime.changes.model import KINDS, RESERVED, change_schema
from writetime.core.errors import WritetimeError
from writetime.schema.avro_decode import AvroReader
from writetime.schema.cql import parse_table
from writetime.schema.fingerprints import fingerprint, single_object_header
from writetime.schema.stored import from_json
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native
from writetime.wire.change_messages import HEADER_BYTES, ChangeDecoder, ChangeEncoder, change_avro

pytestmark = pytest.mark.long

EXAMPLES = examples(100)


def changes_of(r: random.Random, schema: TableSchema, count: int) -> pa.RecordBatch:
    """Changes with any values that Avro accepts, in any field."""
    full = change_schema(schema)
    columns = []
    for field in full:
        if field.name == "kind":
            columns.append(pa.array([r.choice(KINDS) for _ in range(count)]))
            continue
        required = field.name in ("key", "token", "position")
        never = r.random() < 0.1 and not required
        values = [
            None if never or (not required and r.random() < 0.2) else made(r, field.type, name=field.name)
            for _ in range(count)
        ]
        columns.append(pa.array(values, numbers(field.type)).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=full)


def parsed(schema: TableSchema) -> Any:
    return fastavro.parse_schema(plain(json.loads(json.dumps(change_avro(schema)))))


def decoder(schema: TableSchema, *writers: TableSchema) -> ChangeDecoder:
    known = [json.loads(json.dumps(change_avro(s))) for s in writers or [schema]]
    return ChangeDecoder(schema, {fingerprint(avro): avro for avro in known})


def same(found: pa.Table, wanted: pa.RecordBatch) -> None:
    assert found.schema.equals(wanted.schema)
    for name in wanted.schema.names:
        ours, theirs = found[name].combine_chunks(), wanted[name]
        assert ours.equals(theirs), (name, ours, theirs)


def assert_round_trip(changes: pa.RecordBatch, schema: TableSchema) -> None:
    messages = ChangeEncoder(schema).encode(changes)
    same(decoder(schema).decode(messages), changes)
    same(decoder(schema).decode(messages.slice(1)), changes.slice(1))
    # The other library reads the messages that are written here, and the other way round.
    avro = parsed(schema)
    header = single_object_header(change_avro(schema))
    rows = changes.cast(pa.schema([(f.name, numbers(f.type)) for f in changes.schema])).to_pylist()
    theirs = []
    for row, message in zip(rows, messages.to_pylist(), strict=True):
        wanted = as_avro(row, pa.struct(list(changes.schema)))
        stream = io.BytesIO(message)
        assert stream.read(HEADER_BYTES) == header
        assert fastavro.schemaless_reader(stream, avro, None) == wanted
        assert not stream.read()
        written = io.BytesIO()
        fastavro.schemaless_writer(written, avro, wanted)
        theirs.append(header + written.getvalue())
    same(decoder(schema).decode(theirs), changes)


@given(st.integers(0, 2**32))
@EXAMPLES
def test_changes_of_any_table(seed: int) -> None:
    schema = Generator(seed).schema("t")
    assert_round_trip(changes_of(random.Random(seed), schema, 6), schema)


def test_many_columns_of_every_type(is_long: bool) -> None:
    for seed in range(3 if is_long else 1):
        schema = Generator(seed).schema("t", regulars=40, statics=3, clusterings=3)
        schema = replace(
            schema, regular=tuple(Column(f"r{i}", Generator(40 * seed + i).cql_type(3)) for i in range(40))
        )
        assert_round_trip(changes_of(random.Random(seed), schema, 50), schema)


@given(st.lists(generated.change(), min_size=1, max_size=8))
@EXAMPLES
def test_changes_as_they_are_made(changes: list[generated.Change]) -> None:
    (batch,) = generated.table(changes).to_batches()
    assert_round_trip(batch, generated.SCHEMA)


def test_names_that_avro_does_not_know() -> None:
    names = ", ".join(f'"{n}" int' for n in [*RESERVED, "with space", "1st", "Mixed", "a_x20_b"])
    schema = parse_table(f'CREATE TABLE "K s"."T-1" (id int PRIMARY KEY, {names})')
    assert_round_trip(changes_of(random.Random(1), schema, 5), schema)


def test_columns_and_fields_come_and_go() -> None:
    udt = UDTS["inner"]
    older = TableSchema(
        "k",
        "t",
        (Column("p", Native("int")),),
        regular=(Column("a", Native("int")), Column("gone", Native("text")), Column("u", udt)),
    )
    wider = replace(udt, fields=(*udt.fields, ("c", Native("date"))))
    newer = replace(older, regular=(Column("a", Native("int")), Column("u", wider), Column("new", wider)))
    old, new = (changes_of(random.Random(2), s, 200) for s in (older, newer))
    messages = [ChangeEncoder(s).encode(b).to_pylist() for s, b in ((older, old), (newer, new))]
    mixed = [m for pair in zip(*messages, strict=True) for m in pair]
    found = decoder(newer, older, newer).decode(mixed)
    same(found.take(pa.array(range(1, 400, 2))), new)
    first = found.take(pa.array(range(0, 400, 2)))
    assert first["new"].null_count == 200
    for name in ("a", "p", "kind", "origin", "marker"):
        assert first[name].combine_chunks().equals(old[name])
    for row, wanted in zip(first["u"].to_pylist(), old["u"].to_pylist(), strict=True):
        assert row == (wanted and wanted | {"fields": wanted["fields"] | {"c": None}})
    # In the other direction: fields that the older schema lacks are left out, as the other library does.
    back = decoder(older, newer).decode(messages[1])
    for row, message in zip(back.select(["p", "a", "u", "gone"]).to_pylist(), messages[1], strict=True):
        stream = io.BytesIO(message[HEADER_BYTES:])
        theirs: Any = fastavro.schemaless_reader(stream, parsed(newer), parsed(older))
        assert row["gone"] is None
        assert (row["p"], row["a"], row["u"]) == (theirs["p"], theirs["a"], theirs["u"])


def test_the_schema_carries_the_tables() -> None:
    schema = generated.SCHEMA
    assert from_json(json.loads(json.dumps(change_avro(schema)["table"]))) == schema


def test_blocks_of_arrays() -> None:
    """Other writers may cut an array into blocks, and give their sizes in bytes."""
    avro = {"type": "record", "name": "r", "fields": [{"name": "l", "type": {"type": "array", "items": "int"}}]}
    reader = AvroReader(avro, pa.struct([("l", pa.list_(pa.int32()))]))
    blocks = b"\x02\x02" + b"\x03\x04\x04\x06" + b"\x02\x08" + b"\x00"
    assert reader.decode(pa.array([blocks], pa.large_binary()))["l"].to_pylist() == [[1, 2, 3, 4]]


def test_many_messages_and_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = generated.SCHEMA
    batch = changes_of(random.Random(5), schema, rounds(500))
    messages = ChangeEncoder(schema).encode(batch)
    for window in (1, 300, 10_000):
        monkeypatch.setattr("writetime.schema.avro_decode.WINDOW_BYTES", window)
        same(decoder(schema).decode(messages), batch)
    assert decoder(schema).decode([]).num_rows == 0


def test_broken_messages_raise_or_are_read() -> None:
    schema = generated.SCHEMA
    r = random.Random(3)
    reader = decoder(schema)
    messages = ChangeEncoder(schema).encode(changes_of(r, schema, 30)).to_pylist()
    for cut in some(range(len(messages[0])), 3):
        with pytest.raises(WritetimeError, match="message 0"):
            reader.decode([messages[0][:cut]])
    with pytest.raises(WritetimeError, match="message 1"):
        reader.decode([messages[0], messages[1] + b"\0"])
    with pytest.raises(WritetimeError, match="fingerprint"):
        reader.decode([messages[0][:2] + bytes(8) + messages[0][10:]])
    refused = 0
    for _ in range(count := rounds(3000)):
        broken = bytearray(r.choice(messages))
        for _ in range(r.choice([1, 1, 4])):
            broken[r.randrange(HEADER_BYTES, len(broken))] = r.choice([0, 1, 2, 0x7F, 0x80, 0xFF, r.randrange(256)])
        try:
            reader.decode([bytes(broken)])
        except WritetimeError:
            refused += 1
    assert 0 < refused < count


def test_the_fields_of_every_change() -> None:
    schema = generated.SCHEMA
    batch = changes_of(random.Random(4), schema, 2)
    for name in ("kind", "token", "key"):
        at = batch.schema.get_field_index(name)
        without = batch.set_column(at, name, pa.nulls(2, batch.schema.field(name).type))
        with pytest.raises(WritetimeError, match="lacks a field"):
            ChangeEncoder(schema).encode(without)


MILLIS = -1_234_567
CELL = {"write_time": 1, "tombstone": False}
# A change with this timestamp at any depth, and with the number in two places where it is not a timestamp.
TIMESTAMPS = {
    "kind": "row",
    "key": b"k",
    "token": 1,
    "position": b"p",
    "origin": {"source": "x", "captured_at": MILLIS},
    "p": MILLIS,
    "c": MILLIS,
    "v": {"value": MILLIS, **CELL},
    "l": {"elements": [{"path": "x", "value": MILLIS, **CELL}]},
    "m": {"elements": [{"path": MILLIS, "value": None, **CELL}]},
    "u": {"fields": {"a": {"value": MILLIS, **CELL}}},
    "f": {"value": [(MILLIS, {"_1": MILLIS, "_2": MILLIS})], **CELL},
    "b": {"value": MILLIS, **CELL},
}


def in_micros(value: Any, of: str = "") -> Any:
    """A change as it was written before; numbers of the fields named here were no timestamps of the table."""
    if isinstance(value, dict):
        return {n: in_micros(v, n if n in ("b", "_2", "write_time", "captured_at") else of) for n, v in value.items()}
    if isinstance(value, list):
        return [in_micros(v, of) for v in value]
    return value * 1000 if value == MILLIS and not of else value


def test_messages_of_microseconds_are_read_as_milliseconds() -> None:
    """Timestamps were microseconds once, at any depth; the topic still has such messages."""
    schema = parse_table(
        "CREATE TYPE ks.u (a timestamp); CREATE TABLE ks.t (p timestamp, c timestamp, v timestamp, l list<timestamp>, "
        "m map<timestamp, timestamp>, u u, f frozen<map<timestamp, tuple<timestamp, bigint>>>, b bigint, "
        "PRIMARY KEY (p, c))"
    )
    avro = change_avro(schema)
    earlier = before_milliseconds(avro)
    assert fingerprint(earlier) != fingerprint(avro)
    full = change_schema(schema)
    columns = [pa.array([TIMESTAMPS.get(f.name)], numbers(f.type)).cast(f.type) for f in full]
    wanted = pa.RecordBatch.from_arrays(columns, schema=full)
    row = as_avro(
        wanted.cast(pa.schema([(f.name, numbers(f.type)) for f in full])).to_pylist()[0], pa.struct(list(full))
    )
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(plain(earlier)), in_micros(row))
    known = {fingerprint(avro): avro, fingerprint(earlier): earlier}
    same(ChangeDecoder(schema, known).decode([single_object_header(earlier) + written.getvalue()]), wanted)


@pytest.mark.parametrize("is_earlier", [True, False])
def test_a_schema_of_another_table_is_refused(*, is_earlier: bool) -> None:
    """Also if that table is older: its id says nothing about changes of this one."""
    schema = parse_table("CREATE TABLE shop.orders (id int PRIMARY KEY, v text)")
    ids = sorted((uuid.uuid1(), uuid.uuid1()), key=lambda each: each.time)
    own, others = replace(schema, id=ids[is_earlier]), replace(schema, name="other", id=ids[not is_earlier])
    [message] = ChangeEncoder(own).encode(changes_of(random.Random(1), own, 1)).to_pylist()
    avro = json.loads(json.dumps(change_avro(others)))
    decoder = ChangeDecoder(own, {fingerprint(avro): avro}, {5: [fingerprint(avro)]})
    with pytest.raises(WritetimeError, match=r"the id 5 of a schema registry is one of the table shop\.other"):
        decoder.decode([b"\0\0\0\0\5" + message[HEADER_BYTES:]])


def test_the_id_of_a_registry_must_be_announced_for_one_schema() -> None:
    """The two schemas have one form, so a value of one column would become one of the other."""
    one = parse_table("CREATE TABLE shop.orders (id int PRIMARY KEY, a int)")
    other = parse_table("CREATE TABLE shop.orders (id int PRIMARY KEY, b int)")
    batch = changes_of(random.Random(1), one, 3)
    values = [b"\0\0\0\0\5" + m[HEADER_BYTES:] for m in ChangeEncoder(one).encode(batch).to_pylist()]
    avros = {fingerprint(avro): avro for avro in map(change_avro, (one, other))}
    first, second = avros
    same(ChangeDecoder(one, avros, {5: [first], 6: [second]}).decode(values), batch)
    with pytest.raises(WritetimeError, match=r"gave this id to several schemas .* `writetime forget .*`"):
        ChangeDecoder(one, avros, {5: [first, second]}).decode(values)
    with pytest.raises(WritetimeError, match=r"no schema .* has the id 5 of a schema registry: restart the .* agent"):
        ChangeDecoder(one, avros, {6: [second]}).decode(values)


def test_messages_of_an_earlier_table_are_left_out() -> None:
    schema = parse_table("CREATE TABLE shop.orders (id int PRIMARY KEY, v text)")
    earlier, later = sorted((uuid.uuid1(), uuid.uuid1()), key=lambda each: each.time)
    own, before = replace(schema, id=later), change_avro(replace(schema, id=earlier, regular=()))
    [message] = ChangeEncoder(own).encode(changes_of(random.Random(1), own, 1)).to_pylist()
    value = b"\0\0\0\0\5" + message[HEADER_BYTES:]
    known = ChangeDecoder(own, {fingerprint(before): before}, {5: [fingerprint(before)]})
    assert (known.decode([value]).num_rows, known.left_out) == (0, 1)
