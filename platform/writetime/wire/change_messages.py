"""Changes as Avro: the schema, which is derived from the table's, and the messages, encoded and decoded by column.

A record has the fields of `writetime.changes.model.change_schema`, by name. Everything that a table may gain or lose
(its columns, the fields of its types) is nullable with the default null, so a reader with any schema of the table reads
messages written under any other. The schema also has the table's, as the property `table` (`schema.stored`). So a
consumer finds new tables and columns, and drops with their times, in `writetime.schemas` alone. The property `format`
is the version of the format of the messages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa

from writetime.changes.model import KINDS, change_schema, element_types, field_name, udt_fields
from writetime.clients.schema_registry import HEADER_BYTES as REGISTRY_HEADER_BYTES
from writetime.core.arrow import pc
from writetime.core.errors import WritetimeError
from writetime.core.format_version import FORMAT_VERSION
from writetime.lake.labels import without_labels
from writetime.schema.avro import encode
from writetime.schema.avro_decode import AvroReader
from writetime.schema.fingerprints import single_object_header
from writetime.schema.mapping import avro_name, stored_avro_type
from writetime.schema.serialise import loses_parts
from writetime.schema.stored import from_json, to_json
from writetime.schema.table import Column, TableSchema, is_later
from writetime.schema.types import Collection, CqlType, Native, is_complex

HEADER_BYTES = 10
_BINARY = pa.large_binary()
_COUNTER = Native("counter")


def change_avro(schema: TableSchema) -> dict[str, Any]:
    """Return the Avro schema of a table's changes."""
    # When timestamps were microseconds, this began with `changes`. A fingerprint does not cover logical types, so the
    # name must distinguish those messages.
    namespace = f"writetime.{namespace_of(schema.full_name)}"
    marker = [_long("write_time"), _optional("ttl", "int"), _optional("expiry", "long")]
    fields: list[dict[str, Any]] = [
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": list(KINDS)}},
        *(_key_field(c, namespace) for c in schema.partition_key),
        {"name": "key", "type": "bytes"},
        {"name": "token", "type": "long"},
        *(_key_field(c, namespace) for c in schema.clustering),
        {"name": "position", "type": "bytes"},
        _optional("end", "bytes"),
        _optional("marker", _record("marker", marker)),
        _optional("tombstone", _tombstone(namespace)),
        *(_column_field(c, namespace) for c in schema.static + schema.regular),
        _optional("origin", _record("origin", [
            {"name": "source", "type": "string"},
            _optional("node", "string"),
            _optional("file", "string"),
            _optional("offset", "long"),
            _optional("captured_at", {"type": "long", "logicalType": "timestamp-micros"}),
        ])),
    ]  # fmt: skip
    properties = {"format": FORMAT_VERSION, "table": to_json(schema)}
    return {"type": "record", "name": "change", "namespace": namespace, "fields": fields, **properties}


def require_format(avro: Mapping[str, Any]) -> None:
    """Raise `WritetimeError` if the Avro schema of changes does not have the format version of this Writetime."""
    version = avro.get("format")
    if version != FORMAT_VERSION:
        has = "no format version, as before 0.1.0" if version is None else f"format version {version}"
        raise WritetimeError(
            f"its schema has {has}, and this Writetime has format version {FORMAT_VERSION}: land the message with the "
            "Writetime that wrote it, or run `writetime forget` and capture the table again"
        )


def namespace_of(table: str) -> str:
    """Return the namespace of the changes of `keyspace.table`, as `SchemaTopic` uses it."""
    return ".".join(("changes", *map(avro_name, table.split("."))))


def _record(name: str, fields: list[dict[str, Any]], namespace: str | None = None) -> dict[str, Any]:
    return {"type": "record", "name": f"{namespace}.{name}" if namespace else name, "fields": fields}


def _optional(name: str, avro: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", avro], "default": None}


def _long(name: str) -> dict[str, Any]:
    return {"name": name, "type": "long"}


def _tombstone(namespace: str) -> dict[str, Any]:
    return _record("tombstone", [_long("write_time"), _long("deletion_time")], namespace)


def _key_field(column: Column, namespace: str) -> dict[str, Any]:
    name = avro_name(field_name(column))
    return _optional(name, stored_avro_type(column.type, "value", f"{namespace}.{name}"))


def _column_field(column: Column, namespace: str) -> dict[str, Any]:
    name = avro_name(field_name(column))
    # A separate namespace, so that the records of two columns never share a name.
    namespace = f"{namespace}.{name}"
    cql_type = column.type
    if not is_complex(cql_type):
        cell = _cell("cell", [("value", cql_type)], namespace)
        if cql_type == _COUNTER:
            text = [{"name": n, "type": "string"} for n in ("id", "kind")]
            shard = _record("shard", [*text, *map(_long, ("clock", "count", "write_time"))], namespace)
            cell["fields"].append(_optional("shards", {"type": "array", "items": shard}))
        return _optional(name, cell)
    tombstone = _optional("tombstone", _tombstone(namespace))
    if isinstance(cql_type, Collection):
        elements = {"type": "array", "items": _cell("element", element_types(cql_type), namespace)}
        return _optional(name, _record("column", [tombstone, {"name": "elements", "type": elements}], namespace))
    cells = []
    for field, field_type in udt_fields(cql_type):
        inner = avro_name(field)
        cells.append(_optional(inner, _cell("cell", [("value", field_type)], f"{namespace}.{inner}")))
    fields = {"name": "fields", "type": _record("fields", cells, namespace)}
    return _optional(name, _record("column", [tombstone, fields], namespace))


def _cell(name: str, parts: Sequence[tuple[str, CqlType]], namespace: str) -> dict[str, Any]:
    fields = [_optional(n, stored_avro_type(t, n, namespace)) for n, t in parts]
    fields += [_long("write_time"), _optional("ttl", "int"), _optional("deletion_time", "long")]
    fields.append({"name": "tombstone", "type": "boolean"})
    fields += [_optional(f"{n}_bytes", "bytes") for n, t in parts if loses_parts(t)]
    return _record(name, fields, namespace)


class ChangeEncoder:
    """Encodes one table's changes as messages. Each begins with `header`, by default that of the single-object
    encoding.
    """

    def __init__(self, schema: TableSchema, header: bytes | None = None) -> None:
        self._avro = change_avro(schema)
        self._header = header or single_object_header(self._avro)

    def encode(self, changes: pa.RecordBatch) -> pa.Array:
        """Return the value of the message of each change, or raise `WritetimeError` if one lacks a required field."""
        return encode(changes.to_struct_array(), self._avro, self._header)

    def origin_sizes(self, changes: pa.RecordBatch) -> list[int]:
        """Return the size of each change's origin in its message. It comes last, and the rest of the message does not
        depend on where the change was read.
        """
        return pc.binary_length(encode(changes["origin"], self._avro["fields"][-1]["type"])).to_pylist()


class ChangeDecoder:
    """Reads messages of one table's changes, written under any schema of the table.

    The changes get the schema `schema`: columns that a message's schema does not have are null, and other columns are
    left out. `avro_of` returns a message's Avro schema by its fingerprint, None if it is not known. `registered` has
    the fingerprints of the table's schemas by their ids in a registry (see `publishing.SchemaTopic`).
    """

    def __init__(
        self,
        schema: TableSchema,
        avro_of: Callable[[int], Any] | Mapping[int, Any],
        registered: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self.schema = change_schema(schema)
        # Messages have the names that columns have outside the lake.
        self._written = pa.struct(list(change_schema(without_labels(schema))))
        # The fields of each change; some are named by key columns.
        self._first = [avro_name(field.name) for field in takewhile(lambda field: field.name != "end", self._written)]
        self._table = schema
        self._name = schema.full_name
        self._avro_of = avro_of.get if isinstance(avro_of, Mapping) else avro_of
        self._registered = registered or {}
        self._readers: dict[tuple[int, int], AvroReader | None] = {}
        # The number of messages of an earlier table that were left out.
        self.left_out = 0

    def decode(self, messages: Any) -> pa.Table:
        """Return the changes of messages (bytes, or an array of large_binary), in their order, without those of an
        earlier table of the name, which was dropped.

        Raises:
            WritetimeError: a message is neither in the single-object encoding nor in Confluent's wire format, its
                schema is not known, has another format version or does not fit the table's, or it does not follow
                its schema. Or its id in a registry is that of several schemas.
        """
        array = messages if isinstance(messages, pa.Array) else pa.array(messages, _BINARY)
        if array.null_count:
            raise WritetimeError(f"{self._name}: message {int(pc.index(array.is_null(), True).as_py())} has no value")
        if not len(array):
            return self.schema.empty_table()
        parts: list[pa.Table] = []
        places: list[np.ndarray] = []
        for header, name, at in self._by_schema(array):
            reader = self._reader(header, name)
            if reader is None:
                self.left_out += len(at)
                continue
            if len(at) == len(array):
                return reader.decode(array, header).rename_columns(self.schema.names)
            parts.append(reader.decode(array.take(pa.array(at)), header).rename_columns(self.schema.names))
            places.append(at)
        if not parts:
            return self.schema.empty_table()
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(places))))

    def _by_schema(self, messages: pa.Array) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield, for each schema, the length of its messages' header, the name in it, and their places."""
        _, offsets, content = messages.buffers()
        bounds = np.frombuffer(offsets, np.int64)[messages.offset : messages.offset + len(messages) + 1]
        data = np.frombuffer(content or b"", np.uint8)
        starts, sizes = bounds[:-1], np.diff(bounds)
        first, second = (data[np.minimum(starts + i, len(data) - 1)] for i in (0, 1)) if len(data) else (sizes, sizes)
        forms = (
            (HEADER_BYTES, (sizes >= HEADER_BYTES) & (first == 0xC3) & (second == 1), (2, "<u8")),
            (REGISTRY_HEADER_BYTES, (sizes >= REGISTRY_HEADER_BYTES) & (first == 0), (1, ">u4")),
        )
        neither = ~(forms[0][1] | forms[1][1])
        if neither.any():
            raise WritetimeError(
                f"{self._name}: message {int(np.argmax(neither))} is not in Avro's single-object encoding (C3 01 "
                "first), and not in Confluent's wire format (00 first)"
            )
        for size, mask, (skipped, number) in forms:
            at = np.flatnonzero(mask)
            heads = data[starts[at, None] + np.arange(skipped, size)]
            names = np.ascontiguousarray(heads).view(number).ravel()
            for name in np.unique(names):
                yield size, int(name), at[names == name]

    def _reader(self, header: int, name: int) -> AvroReader | None:
        if (header, name) not in self._readers:
            if header == HEADER_BYTES:
                avro, what = self._avro_of(name), f"the fingerprint {name:016x}"
            else:
                avro, what = self._registered_avro(name), f"the id {name} of a schema registry"
            if avro is None:
                raise WritetimeError(
                    f"{self._name}: no schema in writetime.schemas has {what}: restart the table's agent, which sends "
                    "its schemas again"
                )
            require_format(avro)
            is_void = self._is_of_earlier_table(avro, what)
            self._readers[header, name] = None if is_void else AvroReader(self._with_key_names(avro), self._written)
        return self._readers[header, name]

    def _is_of_earlier_table(self, avro: Any, what: str) -> bool:
        try:
            written = from_json(avro["table"])
        except Exception:
            # This schema cannot be read, so only reading the message shows whether it fits the table.
            return False
        if written.full_name != self._name:
            raise WritetimeError(f"{self._name}: the schema with {what} is one of the table {written.full_name}")
        return is_later(self._table, written)

    def _registered_avro(self, schema_id: int) -> Any | None:
        """Return the Avro schema that agents registered under an id, None if none did. The registry is not asked: of a
        wrong answer, such as another version of the table, a message does not show that it is wrong.
        """
        found = self._registered.get(schema_id, ())
        if len(found) > 1:
            raise WritetimeError(
                f"{self._name}: a message names its schema by the id {schema_id}, and a schema registry gave this id "
                "to several schemas of the table, so nothing shows which one it means: run `writetime forget "
                f"{self._name}`, and capture the table again"
            )
        return self._avro_of(found[0]) if found else None

    def _with_key_names(self, avro: Any) -> Any:
        """Return a message's Avro schema with the present names of the table's key columns: RENAME changes their names,
        and never their order.
        """
        count = len(self._first)
        found = [field["name"] for field in avro["fields"]]
        if found[:count] == self._first or found[count : count + 1] != ["end"]:
            return avro
        renamed = [{**field, "name": name} for field, name in zip(avro["fields"], self._first, strict=False)]
        return {**avro, "fields": [*renamed, *avro["fields"][count:]]}
