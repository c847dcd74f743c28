"""The bytes of values that decoding loses, on both sides of a comparison: `schema.serialise.loses_parts`.

Two values that are equal when they are decoded, such as a tuple with a null part and one with an empty part, are
different in the database. So each side has the serialised values where serialising the decoded ones gives other bytes.
Within collections and user-defined types that are not frozen, natives count by their values.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from writetime.changes.model import element_types, udt_fields
from writetime.core.arrow import mask_of, pc
from writetime.merge.live import cells_live
from writetime.schema.serialise import (
    loses_parts,
    other_bytes,
    padded,
    sequence,
    serialised_values,
    serialiser,
    struct_of,
)
from writetime.schema.serialise_arrays import plain
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, is_complex
from writetime.schema.values import decoder, split_fields, split_sequence


def compared_columns(schema: TableSchema) -> list[Column]:
    """Return the static and regular columns whose bytes are compared, too."""
    return [column for column in schema.static + schema.regular if loses_parts(column.type)]


def of_database(values: Sequence[bytes | None], decoded: pa.Array, cql_type: CqlType) -> pa.Array:
    """Return the bytes of values of the database, null where the decoded ones have the same."""
    canonical = _canonical(cql_type) if is_complex(cql_type) else None
    raw = [None if v is None else canonical(v) for v in values] if canonical else values
    return pa.array(list(map(other_bytes(cql_type), raw, plain(decoded).to_pylist())), pa.binary())


def of_lake(entries: pa.StructArray, live: pa.Array, cql_type: CqlType, as_of: int) -> pa.Array:
    """Return the bytes of values of the lake, null where the decoded ones have the same.

    Args:
        entries: the column of the state, for each row.
        live: its live values.
        cql_type: the type of the column.
        as_of: the time of the live values, in seconds.
    """
    if not is_complex(cql_type):
        return pc.if_else(cells_live(entries, as_of), entries.field("value_bytes"), pa.scalar(None, pa.binary()))
    parts = entries.flatten()[1]
    odd = _odd_elements(parts, cql_type) if isinstance(cql_type, Collection) else _odd_fields(parts, as_of)
    rows = pa.array(np.flatnonzero(odd))
    some = parts.take(rows)
    made = _elements(some, cql_type, as_of) if isinstance(cql_type, Collection) else _fields(some, cql_type, as_of)
    found: list[bytes | None] = [None] * len(entries)
    other = other_bytes(cql_type)
    for row, data, value in zip(rows.to_pylist(), made, plain(live.take(rows)).to_pylist(), strict=True):
        found[row] = other(data, value)
    return pa.array(found, pa.binary())


def _canonical(cql_type: CqlType) -> Callable[[bytes], bytes]:
    """Return a function that gives the parts of a serialised value the bytes that the lake has for them."""
    if isinstance(cql_type, Collection):
        parts = [_kept(t) for _, t in _returned(cql_type)]

        def of_elements(data: bytes) -> bytes:
            found = [parts[i % len(parts)](part) for i, part in enumerate(split_sequence(data, 4))]
            return sequence(found, len(found) // len(parts))

        return of_elements
    kept = [_kept(t) for _, t in udt_fields(cql_type)]

    def of_fields(data: bytes) -> bytes:
        parts = split_fields(data, cql_type, len(kept))
        parts += [None] * (len(kept) - len(parts))
        return struct_of([keep(part) for keep, part in zip(kept, parts, strict=True)])

    return of_fields


def _kept(cql_type: CqlType) -> Callable[[bytes | None], bytes | None]:
    if loses_parts(cql_type):
        pad = padded(cql_type)
        return lambda data: None if data is None else pad(data)
    decode, serialise = decoder(cql_type), serialiser(cql_type)
    return lambda data: None if data is None else serialise(decode(data))


def _odd_elements(lists: pa.ListArray, cql_type: Collection) -> np.ndarray:
    """Return which collections may have other bytes than their decoded values."""
    elements = lists.flatten()
    odd = np.zeros(len(elements), bool)
    for name, _ in element_types(cql_type):
        odd |= mask_of(elements.field(name).is_null()) | _has_bytes(elements, name)
    found = np.zeros(len(lists), bool)
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    found[np.repeat(np.arange(len(lists)), lengths)[odd]] = True
    return found


def _odd_fields(fields: pa.StructArray, as_of: int) -> np.ndarray:
    """Return which user-defined types may have other bytes than their decoded values."""
    found = np.zeros(len(fields), bool)
    for cells in fields.flatten():
        empty = mask_of(pc.and_(cells_live(cells, as_of), cells.field("value").is_null()))
        found |= empty | _has_bytes(cells, "value")
    return found


def _elements(lists: pa.ListArray, cql_type: Collection, as_of: int) -> list[bytes | None]:
    """Return the bytes of collections, None where no element lives."""
    elements = lists.flatten()
    lives = mask_of(cells_live(elements, as_of)).tolist()
    parts = [_bytes(elements, name, t) for name, t in _returned(cql_type)]
    found: list[bytes | None] = []
    start = 0
    for length in pc.list_value_length(lists).fill_null(0).to_pylist():
        own = [i for i in range(start, start + length) if lives[i]]
        found.append(sequence([part[i] for i in own for part in parts], len(own)) if own else None)
        start += length
    return found


def _returned(cql_type: Collection) -> list[tuple[str, CqlType]]:
    """Return the parts of an element that the database returns: it does not return the timeuuids of lists."""
    return element_types(cql_type)[cql_type.kind == "list" :]


def _fields(fields: pa.StructArray, cql_type: CqlType, as_of: int) -> list[bytes | None]:
    """Return the bytes of user-defined types, None where no field lives."""
    columns: list[list[bytes | None]] = []
    for cells, (_, t) in zip(fields.flatten(), udt_fields(cql_type), strict=True):
        lives = mask_of(cells_live(cells, as_of)).tolist()
        values = _bytes(cells, "value", t)
        columns.append([value if alive else None for value, alive in zip(values, lives, strict=True)])
    return [struct_of(row) if any(part is not None for part in row) else None for row in zip(*columns, strict=True)]


def _bytes(cells: pa.StructArray, name: str, cql_type: CqlType) -> list[bytes]:
    parts = dict(zip((field.name for field in cells.type), cells.flatten(), strict=True))
    others: list[bytes | None] = [None] * len(cells)
    if loses_parts(cql_type):
        pad = padded(cql_type)
        others = [None if other is None else pad(other) for other in parts[f"{name}_bytes"].to_pylist()]
    return serialised_values(plain(parts[name]).to_pylist(), others, cql_type)


def _has_bytes(cells: pa.StructArray, name: str) -> np.ndarray:
    place = cells.type.get_field_index(f"{name}_bytes")
    return np.zeros(len(cells), bool) if place < 0 else mask_of(cells.flatten()[place].is_valid())
