"""The keys of row events as JSON: the whole primary key, and the same text for all events of a row and no other row.

The key is an object of the key columns. These do not identify each row:

- A part may be null: it has no bytes, is a timestamp that does not fit, or belongs to a partition that has static cells
  and no row.
- A part may be a number that is not finite.
- A partition key may have unusual bytes, such as 02 for the boolean true.

The key of such a row has another field, `__place`, with the place of the row: the partition key and the position as
hexadecimal digits.

Clustering columns compare as in the database, where 1.0 and 1.00 are equal. So equal decimals have one form.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from writetime.core.arrow import mask_of, numbers, pc, take
from writetime.schema.connect import JsonEncoder, Schema, connect_type, json_object, json_text, plain, struct
from writetime.schema.names import candidates
from writetime.schema.serialise import partition_key, serialiser
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector
from writetime.schema.values import decoder

_PLACE = "__place"
# Types that have one form of bytes for each value that is not null.
_EXACT = ("ascii", "bigint", "blob", "date", "double", "float", "inet", "int", "smallint", "text", "time")
_EXACT += ("timestamp", "timeuuid", "tinyint", "uuid")


class MessageKeys:
    """Makes the keys of the messages of a table."""

    def __init__(self, schema: TableSchema, name: str, *, with_schema: bool) -> None:
        """Describe the keys; `name` is that of their Connect schema, which messages have if `with_schema`."""
        self._columns = schema.partition_key + schema.clustering
        self._partition_key = schema.partition_key
        taken = {column.name for column in self._columns}
        self._place = next(n for n in candidates(_PLACE) if n not in taken)
        self._encoders = [
            *(JsonEncoder(with_schema) for _ in schema.partition_key),
            *(JsonEncoder(with_schema, canonical=True) for _ in schema.clustering),
        ]
        fields: list[Schema] = [connect_type(c.type) | {"field": c.name} for c in self._columns]
        placed = [*fields, plain("string") | {"field": self._place}]
        self.schemas = [struct(f, name=name) | {"optional": False} for f in (fields, placed)]
        """The Connect schema of keys, and that of keys with a place."""

    def encode(self, events: pa.RecordBatch) -> tuple[pa.Array, np.ndarray]:
        """Return the key of each event, without its schema, and which keys have a place."""
        columns = self._of_rows(events)
        names = [column.name for column in self._columns]
        parts = [
            encoder.encode(values, column.type)
            for encoder, column, values in zip(self._encoders, self._columns, columns, strict=True)
        ]
        keys = json_object(names, parts)
        placed = ~self._known(columns, events["key"])
        if placed.any():
            keys = pc.replace_with_mask(keys, pa.array(placed), self._with_place(keys, events, placed))
        return keys, placed

    def _of_rows(self, events: pa.RecordBatch) -> list[pa.Array]:
        """Return the key columns of the row of each event, after it or else before it."""
        count = len(self._columns)
        after = events["after"].flatten()[:count]
        if not events["after"].null_count:
            return after
        gone = np.flatnonzero(~mask_of(events["after"].is_valid()))
        index = np.arange(len(events))
        index[gone] += len(events)
        before = events["before"].flatten()[:count]
        return [take(pa.concat_arrays(pair), index) for pair in zip(after, before, strict=True)]

    def _known(self, columns: Sequence[pa.Array], keys: pa.Array) -> np.ndarray:
        """Return which rows are known by their key columns."""
        found = np.ones(len(keys), bool)
        for column, values in zip(self._columns, columns, strict=True):
            found &= whole(values, column.type)
        if not all(isinstance(c.type, Native) and c.type.name in _EXACT for c in self._partition_key):
            distinct = pc.dictionary_encode(keys)
            usual = [is_usual(key, self._partition_key) for key in distinct.dictionary.to_pylist()]
            found &= np.array(usual, bool)[distinct.indices.to_numpy()]
        return found

    def _with_place(self, keys: pa.Array, events: pa.RecordBatch, placed: np.ndarray) -> pa.Array:
        chosen = pa.array(placed)
        parts = (array.filter(chosen).to_pylist() for array in (keys, events["key"], events["position"]))
        made = [
            f'{key[:-1]},{json_text(self._place)}:"{partition.hex()}/{position.hex()}"}}'
            for key, partition, position in zip(*parts, strict=True)
        ]
        return pa.array(made, pa.large_string())


def whole(values: pa.Array, cql_type: CqlType) -> np.ndarray:
    """Return which values have no part that is null or not finite."""
    found = mask_of(values.is_valid())
    match cql_type:
        case Native("float" | "double"):
            return found & mask_of(pc.is_finite(values).fill_null(False))
        case Native():
            return found
        case Collection("map", arguments):
            if pa.types.is_map(values.type):
                entry = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
                values = values.cast(pa.list_(entry))
            parts = zip(values.flatten().flatten(), arguments, strict=True)
            return found & _all_in(values, np.logical_and.reduce([whole(p, t) for p, t in parts]))
        case Collection(_, (element,)) | Vector(element, _):
            return found & _all_in(values, whole(values.flatten(), element))
        case Tuple(types):
            inner = list(types)
        case Udt(_, _, fields):
            inner = [t for _, t in fields]
        case _:
            raise AssertionError(cql_type)
    return np.logical_and.reduce([found, *(whole(p, t) for p, t in zip(values.flatten(), inner, strict=True))])


def is_usual(key: bytes, columns: Sequence[Column]) -> bool:
    """Return whether a partition key has the bytes that its values serialise to."""
    try:
        parts = [key] if len(columns) == 1 else _split(key)
        again = [serialiser(c.type)(decoder(c.type)(part)) for c, part in zip(columns, parts, strict=True)]
    except Exception:
        # A value that cannot be decoded must not stop other rows.
        return False
    return partition_key(again) == key


def _split(key: bytes) -> list[bytes]:
    """Split a composite partition key: each part follows its length (two bytes), and precedes a zero byte."""
    parts, at = [], 0
    while at < len(key):
        end = at + 2 + int.from_bytes(key[at : at + 2], "big")
        parts.append(key[at + 2 : end])
        at = end + 1
    return parts


def _all_in(lists: pa.Array, flags: np.ndarray) -> np.ndarray:
    """Return which lists have only flagged elements."""
    lengths = numbers(pc.list_value_length(lists))
    found = np.ones(len(lists), bool)
    found[np.repeat(np.arange(len(lists)), lengths)[~flags]] = False
    return found
