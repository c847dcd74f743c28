"""Row events as JSON that Kafka Connect and Debezium read, with the keys of rows.

Oracle: Kafka Connect and Debezium; for keys, the places of the rows.
"""

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.row_events.connect import Sent, as_connect_reads
from tests.support import generated
from tests.support.connect_values import as_connect, column, values
from tests.support.examples import examples
from writetime.changes.model import change_schema
from writetime.changes.position import AT, position_encoder
from writetime.lake.projection import EventBatch
from writetime.merge import merge
from writetime.row_events.events import KINDS, event_schema, fitted_rows, row_events
from writetime.row_events.json_messages import ADDED, JsonMessages
from writetime.schema.cql import parse_table
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native
from writetime.schema.values import decoder
from writetime.storage.kernel.primitives import token

pytestmark = pytest.mark.slow

EXAMPLES = examples(60)
EVERY_TYPE = parse_table("""
    CREATE TYPE shop.pair (x int, "Y y" text);
    CREATE TABLE shop.every (
        k int, c timestamp, a ascii, b blob, bo boolean, da date, de decimal, d double, du duration,
        f float, i inet, l bigint, sm smallint, t text, ti time, ts timestamp, tu timeuuid, tn tinyint, u uuid,
        v varint, li list<frozen<pair>>, se set<text>, m map<text, double>, mu map<uuid, frozen<list<int>>>,
        p pair, tp tuple<int, text>, ve vector<float, 3>, PRIMARY KEY (k, c)
    )
""")


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Some values of a strategy; nulls are among them."""
    found: list[Any] = []

    @given(st.lists(st.none() | strategy, min_size=count, max_size=count))
    @examples(4)
    def draw(those: list[Any]) -> None:
        found[:] = those

    draw()
    return found


def events_of_every_type(count: int) -> tuple[pa.RecordBatch, dict[str, list[Any]]]:
    """Events with images of every type, one third of each kind, and the values of the images after."""
    images, found = [], {}
    for image in ("before", "after"):
        found = {c.name: drawn(values(c.type), count) for c in EVERY_TYPE.columns}
        arrays = [column(c.type, found[c.name]) for c in EVERY_TYPE.columns]
        gone = pa.array([KINDS[n % 3] == ("CREATE" if image == "before" else "DELETE") for n in range(count)])
        fields = list(event_schema(EVERY_TYPE).field(image).type)
        images.append(pa.StructArray.from_arrays(arrays, fields=fields, mask=gone))
    numbers = list(range(count))
    keys = [struct.pack(">i", n) for n in numbers]
    columns = [
        pa.array([f"00000000-0000-8000-8000-{n:012d}" for n in numbers]),
        pa.array([KINDS[n % 3] for n in numbers]),
        *(pa.array([n] * count, pa.int64()) for n in (7, 2)),
        pa.array([1_700_000_000_123_456] * count).cast(pa.timestamp("us", "UTC")),
        pa.array(numbers, pa.int64()),
        *(pa.array(keys, pa.binary()) for _ in range(2)),
        pa.array([None, 1_600_000_000_123_456, -5, (1 << 63) - 1] * (count // 4), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays([*columns, *images], schema=event_schema(EVERY_TYPE)), found


def test_connect_and_debezium_read_every_type(tmp_path: Path) -> None:
    """One start of Java reads all forms: the oracle is Connect's converter, Debezium's envelope, and its flattening."""
    count = 12
    events, after = events_of_every_type(count)
    sent, payloads = [], []
    for flat, with_schema in ((False, True), (False, False), (True, True), (True, False)):
        made = JsonMessages(EVERY_TYPE, flat=flat, with_schema=with_schema)
        keys, found = made.keys(events).to_pylist(), made.values(events, 6).to_pylist()
        sent += [Sent(with_schema, k.encode(), v.encode()) for k, v in zip(keys, found, strict=True)]
        for pair in zip(keys, found, strict=True):
            payloads.append([json.loads(text)["payload"] if with_schema else json.loads(text) for text in pair])
    sent.append(Sent(True, sent[0].key, None))
    read = as_connect_reads(tmp_path, sent, ADDED)
    assert read.pop()["value"] is None
    for each, (key, value) in zip(read, payloads, strict=True):
        assert (each["key"], single(each["value"])) == (key, single(value))
    for n, each in enumerate(read[:count]):
        assert each["value"]["op"] == "cud"[n % 3]
        assert_row(each["value"]["after"], {name: column[n] for name, column in after.items()}, n)
        assert single(each["unwrapped"]) == read[2 * count + n]["value"]
    times = [[each["value"]["source"][name] for name in ("ts_ms", "ts_us", "ts_ns")] for each in read[:4]]
    assert times[0] == [1_700_000_000_123, 1_700_000_000_123_456, 1_700_000_000_123_456_000]
    assert times[1:3] == [[1_600_000_000_123, 1_600_000_000_123_456, 1_600_000_000_123_456_000], [-1, -5, -5000]]
    assert times[3] == [9_223_372_036_854_775, (1 << 63) - 1, None]
    assert_envelope(json.loads(sent[0].value or b"")["schema"], read[0]["debezium"])


def single(value: dict[str, Any]) -> dict[str, Any]:
    """Round the numbers of type `float`: Java 17 writes more digits than needed."""
    for row in (value, value.get("before"), value.get("after")):
        if row and "f" in row:
            vector = row["ve"] or []
            row["f"], *vector = (float(np.float32(v)) if isinstance(v, float) else v for v in (row["f"], *vector))
            row["ve"] = row["ve"] and vector
    return value


def assert_row(found: dict[str, Any] | None, wanted: dict[str, Any], n: int) -> None:
    if KINDS[n % 3] == "DELETE":
        assert found is None
        return
    types = {c.name: c.type for c in EVERY_TYPE.columns}
    assert found == single({name: as_connect(v, types[name], with_schema=True) for name, v in wanted.items()})


def assert_envelope(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compare the schema with Debezium's own, which also has the fields of transactions."""
    wanted = [field for field in theirs["fields"] if field["field"] != "transaction"]
    assert sorted(ours["fields"], key=str) == sorted(wanted, key=str)
    source = {field["field"] for field in next(f for f in ours["fields"] if f["field"] == "source")["fields"]}
    # "Data change events" of its documentation; the last two are those of its connectors for Cassandra and ScyllaDB.
    assert source >= {"version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "db", "sequence"}
    assert source >= {"keyspace_name", "table_name"}


BATCHES = st.lists(st.tuples(st.lists(generated.change(), max_size=5), st.integers(0, 2)), max_size=4)


@given(BATCHES, st.booleans())
@EXAMPLES
def test_each_row_has_one_key_of_its_own(batches: list[Any], with_schema: bool) -> None:
    """Through all of a history: equal decimals, static rows, empty values."""
    schema = generated.SCHEMA
    state, second, known = merge([], schema), 99, {}
    before = fitted_rows(state, schema, second * 1_000_000)
    for sequence, (changes, seconds) in enumerate(batches, 1):
        second += seconds
        state = merge([state, generated.table(changes)], schema)
        after = fitted_rows(state, schema, second * 1_000_000)
        for events in row_events(before, after, schema, EventBatch(0, sequence, second * 1_000_000)).to_batches():
            keys = JsonMessages(schema, flat=False, with_schema=with_schema).keys(events).to_pylist()
            places = zip(events["key"].to_pylist(), events["position"].to_pylist(), strict=True)
            for place, key in zip(places, keys, strict=True):
                assert known.setdefault(place, key) == key
        before = after
    assert len(set(known.values())) == len(known)


FLOATS = [struct.pack(">d", v) for v in (0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"))]
FLOATS += [b"\x7f\xf8" + bytes(5) + b"\1", b""]
TIMES = [struct.pack(">q", v) for v in (0, -(1 << 63), (1 << 63) - 1, 1 << 62)]
# Each of these has a special meaning as a partition key.
ODD_KEYS = {
    "boolean": [b"\0", b"\1", b"\2", b""],
    "varint": [b"\1", b"\0\1", b"\0", b"\xff", b""],
    "decimal": [struct.pack(">i", scale) + n for scale in (0, 1) for n in (b"\1", b"\0\1", b"\x0a", b"\0")],
    "double": FLOATS,
    "timestamp": TIMES,
    "int": [bytes(4), b"\0\0\0\1", b""],
    "tuple<int, boolean>": [b"\0\0\0\4" + bytes(4), b"\0\0\0\4" + bytes(4) + b"\xff" * 4, b"\xff" * 8, bytes(8)],
    "frozen<list<double>>": [struct.pack(">ii", 1, len(v)) + v for v in FLOATS],
    "frozen<map<int, timestamp>>": [struct.pack(">iiii", 1, 4, 7, 8) + v for v in TIMES],
}


@pytest.mark.parametrize("with_schema", [True, False])
@pytest.mark.parametrize("name", ODD_KEYS)
def test_odd_keys_are_distinct_and_stop_no_row(name: str, with_schema: bool) -> None:
    schema = parse_table(f"CREATE TABLE shop.odd (k {name}, n int, PRIMARY KEY (k, n))")
    place = {"n": 1, "position": position_encoder(schema.clustering)([bytes(3) + b"\1"], AT), "kind": "row"}
    decode = decoder(schema.partition_key[0].type)
    keys = ODD_KEYS[name]
    rows = [place | {"k": decode(k), "key": k, "token": token(k), "marker": {"write_time": 1}} for k in keys]
    found = created(schema, rows)
    made = JsonMessages(schema, flat=True, with_schema=with_schema)
    texts = made.keys(found).to_pylist()
    assert len(set(texts)) == len(keys)
    for text in [*texts, *made.values(found, 0).to_pylist()]:
        json.loads(text)
    if name == "int":
        payloads = [json.loads(t)["payload"] if with_schema else json.loads(t) for t in texts]
        assert {"k": 1, "n": 1} in payloads
        assert {"k": None, "n": 1, "__place": f"/{place['position'].hex()}"} in payloads


def test_columns_may_have_the_names_of_our_fields() -> None:
    columns = [Column(name, Native("int")) for name in ("__place", "__op")]
    schema = TableSchema("shop", "odd", (columns[0],), regular=(columns[1],))
    row = {"__place": None, "key": b"", "token": token(b""), "position": position_encoder(())([], AT), "kind": "row"}
    events = created(schema, [row | {"marker": {"write_time": 1}}])
    made = JsonMessages(schema, flat=True, with_schema=False)
    (key,), (value,) = made.keys(events).to_pylist(), made.values(events, 0).to_pylist()
    assert json.loads(key) == {"__place": None, "__place_2": "/38"}
    assert {"__op": None, "__op_2": "c"}.items() <= json.loads(value).items()


def created(schema: TableSchema, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """The events that create rows."""
    random.Random(1).shuffle(rows)
    state = merge([pa.Table.from_pylist(rows, change_schema(schema))], schema)
    nothing = fitted_rows(merge([], schema), schema, 1)
    return row_events(nothing, fitted_rows(state, schema, 1), schema, EventBatch(0, 1, 1)).to_batches()[0]
