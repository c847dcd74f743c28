"""Row events as JSON: the envelope of Debezium, and a flat form of it.

The envelope is that of `io.debezium.data.Envelope`. `source` has the fields of all connectors of Debezium, and those
fields of its connectors for Cassandra and ScyllaDB that a merged change has. The flat form is the result of Debezium's
`ExtractNewRecordState` with `delete.tombstone.handling.mode=rewrite` and `add.fields` for `ADDED`. With schemas, key
and value are each `{"schema": ..., "payload": ...}`, as Connect's JSON converter reads by default.

Each row has a form: values without a form in JSON are null (`schema.connect`), even in key columns.
"""

from importlib.metadata import version
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from writetime.core.arrow import mask_of, numbers, pc, take
from writetime.row_events.events import CREATE, DELETE, KINDS
from writetime.row_events.message_keys import MessageKeys
from writetime.schema.connect import (
    JsonEncoder,
    Schema,
    connect_type,
    json_object,
    json_quoted,
    json_text,
    plain,
    struct,
)
from writetime.schema.mapping import avro_name
from writetime.schema.names import candidates
from writetime.schema.table import TableSchema

SERVER = "row_events"
"""The logical name of the server: topics of Debezium are `<server>.<keyspace>.<table>`."""
ADDED = ("op", "ts_ms", "source.ts_ms", "source.generation", "source.batch", "source.event_id")
"""The fields of the envelope that the flat form has, after two underscores."""

_DELETED = "__deleted"
_NANOS_MAX = ((1 << 63) - 1) // 1_000
_SNAPSHOT: Schema = {
    **plain("string"),
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"},
    "default": "false",
}
_SOURCE: dict[str, Schema] = {
    "version": plain("string") | {"optional": False},
    "connector": plain("string") | {"optional": False},
    "name": plain("string") | {"optional": False},
    "ts_ms": plain("int64") | {"optional": False},
    "snapshot": _SNAPSHOT,
    "db": plain("string") | {"optional": False},
    "sequence": plain("string"),
    "ts_us": plain("int64"),
    "ts_ns": plain("int64"),
    "keyspace_name": plain("string") | {"optional": False},
    "table_name": plain("string") | {"optional": False},
    "generation": plain("int64") | {"optional": False},
    "batch": plain("int64") | {"optional": False},
    "event_id": plain("string") | {"optional": False, "name": "io.debezium.data.Uuid", "version": 1},
}
# The envelope's other fields, without `before`, `after` and `source`.
_OWN: dict[str, Schema] = {
    "op": plain("string") | {"optional": False},
    **{name: plain("int64") for name in ("ts_ms", "ts_us", "ts_ns")},
}


class JsonMessages:
    """Makes the messages of the row events of a table."""

    def __init__(self, schema: TableSchema, *, flat: bool, with_schema: bool) -> None:
        """Describe the messages: the envelope or the flat form of it, with Connect's schemas or without."""
        self._schema = schema
        self._flat = flat
        self._with_schema = with_schema
        self._encoder = JsonEncoder(with_schema)
        self._name = ".".join((SERVER, avro_name(schema.keyspace), avro_name(schema.name)))
        self._keys = MessageKeys(schema, f"{self._name}.Key", with_schema=with_schema)
        taken = {column.name for column in schema.columns}
        wanted = [_DELETED, *("__" + name.replace(".", "_") for name in ADDED)]
        self._added = [next(n for n in candidates(name) if n not in taken) for name in wanted]

    def keys(self, events: pa.RecordBatch) -> pa.Array:
        """Return the key of the message of each event."""
        keys, placed = self._keys.encode(events)
        if not self._with_schema:
            return keys
        usual, with_place = (_enveloped(schema, keys) for schema in self._keys.schemas)
        return pc.if_else(pa.array(placed), with_place, usual) if placed.any() else usual

    def values(self, events: pa.RecordBatch, read_to: int) -> pa.Array:
        """Return the value of the message of each event of one generation. Those of the base are of several batches.
        Events that create a row, of batches up to `read_to`, read a row that existed before (`r`).
        """
        as_of = events["as_of"].cast(pa.int64())
        own = {"op": _operations(events, read_to), **_times(as_of)}
        source = self._source(events, read_to) | _times(pc.coalesce(events["write_time"], as_of))
        source["event_id"] = json_quoted(events["event_id"])
        if self._flat:
            payload = self._flat_rows(events, own | {f"source.{name}": value for name, value in source.items()})
        else:
            parts = {name: self._rows(events[name]) for name in ("before", "after")}
            parts["source"] = json_object(list(_SOURCE), [source[name] for name in _SOURCE])
            payload = json_object([*parts, *own], [*parts.values(), *own.values()])
        return _enveloped(self.value_schema(), payload) if self._with_schema else payload

    def value_schema(self) -> Schema:
        """Return the Connect schema of the values."""
        columns = [connect_type(c.type) | {"field": c.name} for c in self._schema.columns]
        name = f"{self._name}.Value"
        if self._flat:
            kinds = [plain("string"), *(_OWN.get(n) or _SOURCE[n.removeprefix("source.")] for n in ADDED)]
            added = [kind | {"optional": True, "field": n} for kind, n in zip(kinds, self._added, strict=True)]
            return struct([*columns, *added], name=name) | {"optional": False}
        fields = [struct(columns, name=name) | {"field": n} for n in ("before", "after")]
        source = struct([kind | {"field": n} for n, kind in _SOURCE.items()], name=f"{self._name}.Source")
        fields += [source | {"optional": False, "field": "source"}]
        fields += [kind | {"field": n} for n, kind in _OWN.items()]
        return struct(fields, name=f"{self._name}.Envelope", version=1) | {"optional": False}

    def _source(self, events: pa.RecordBatch, read_to: int) -> dict[str, Any]:
        generation = str(events["generation"][0])
        batches = events["sequence"].dictionary_encode()
        numbers = batches.dictionary.to_pylist()

        def of_batches(texts: list[str]) -> pa.Array | str:
            """Return the text of each event from those of the batches."""
            return texts[0] if len(texts) == 1 else pa.array(texts, pa.large_string()).take(batches.indices)

        texts = {
            "version": version("writetime"),
            "connector": "writetime",
            "name": SERVER,
            "db": self._schema.keyspace,
            "keyspace_name": self._schema.keyspace,
            "table_name": self._schema.name,
        }
        return {name: json_text(text) for name, text in texts.items()} | {
            "snapshot": of_batches([json_text("true" if batch <= read_to else "false") for batch in numbers]),
            "sequence": of_batches([json_text(orjson.dumps([generation, str(b)]).decode()) for b in numbers]),
            "generation": generation,
            "batch": of_batches([str(batch) for batch in numbers]),
        }

    def _rows(self, rows: pa.StructArray) -> pa.Array:
        """Return rows as JSON, `null` where there is none."""
        objects = self._objects(rows.flatten(), {})
        return pc.if_else(rows.is_valid(), objects, pa.scalar("null", objects.type)) if rows.null_count else objects

    def _flat_rows(self, events: pa.RecordBatch, facts: dict[str, Any]) -> pa.Array:
        """Return the row after each event, or the one before a deletion, with facts about the event."""
        deleted = deletes(events)
        index = np.arange(len(events)) + len(events) * deleted
        pairs = zip(events["after"].flatten(), events["before"].flatten(), strict=True)
        rows = [take(pa.concat_arrays(pair), index) if deleted.any() else pair[0] for pair in pairs]
        flags = pa.array(['"false"', '"true"'], pa.large_string()).take(pa.array(deleted.astype(np.int8)))
        values = [flags, *(facts[name] for name in ADDED)]
        return self._objects(rows, dict(zip(self._added, values, strict=True)))

    def _objects(self, arrays: list[pa.Array], more: dict[str, Any]) -> pa.Array:
        columns = self._schema.columns
        values = [self._encoder.encode(array, c.type) for c, array in zip(columns, arrays, strict=True)]
        return json_object([*(c.name for c in columns), *more], [*values, *more.values()])


def deletes(events: pa.RecordBatch) -> np.ndarray:
    """Return which events delete a row."""
    return mask_of(pc.equal(events["kind"], KINDS[DELETE]))


def _operations(events: pa.RecordBatch, read_to: int) -> pa.Array:
    names = pa.array([json_text(op) for op in "cudr"], pa.large_string())
    kinds = pc.index_in(events["kind"], pa.array(KINDS)).to_numpy()
    is_read = (kinds == CREATE) & (events["sequence"].to_numpy() <= read_to)
    return names.take(pa.array(np.where(is_read, 3, kinds)))


def _times(micros: pa.Array) -> dict[str, pa.Array]:
    """Return times (microvalues) in each unit; nanovalues are null where they do not fit."""
    values = numbers(micros)
    fits = np.abs(values) <= _NANOS_MAX
    nanos = pa.array(np.where(fits, values, 0) * 1_000, mask=~fits)
    return {
        "ts_ms": pa.array(values // 1_000).cast(pa.large_string()),
        "ts_us": micros.cast(pa.large_string()),
        "ts_ns": nanos.cast(pa.large_string()).fill_null("null"),
    }


def _enveloped(schema: Schema, payload: pa.Array) -> pa.Array:
    return json_object(["schema", "payload"], [orjson.dumps(schema).decode(), payload])
