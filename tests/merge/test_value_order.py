"""The order of values, compared with the bytes that a real database sent."""

import pyarrow as pa

from tests.support.merged import History
from writetime.changes.position import AT, position_encoder
from writetime.merge.value_order import comparable, serialised
from writetime.schema.serialise import serialiser
from writetime.schema.serialise_arrays import plain
from writetime.schema.table import Column
from writetime.schema.types import Udt, freeze


def columns(histories: list[History]) -> list[tuple[Column, pa.Array, list[bytes]]]:
    """Every column with the values that the database sent, and their bytes."""
    found = []
    for history in histories:
        table = history.rows
        for i, column in enumerate(history.schema.columns):
            present = [n for n, row in enumerate(history.raw) if row[i] is not None]
            raw = [data for row in history.raw if (data := row[i]) is not None]
            found.append((column, table[column.name].combine_chunks().take(pa.array(present, pa.int64())), raw))
    return found


def ranks(keys: list[bytes]) -> list[int]:
    ordered = sorted(set(keys))
    return [ordered.index(key) for key in keys]


def as_keys(array: pa.Array) -> list[bytes]:
    return [b"" if v is None else v.encode() if isinstance(v, str) else v for v in array.to_pylist()]


def test_serialising_is_the_inverse_of_decoding(histories: list[History]) -> None:
    for column, values, raw in columns(histories):
        inner = serialiser(freeze(column.type))
        found = [inner(v) for v in plain(values).to_pylist()]
        if isinstance(column.type, Udt):
            # A value written before its type grew ends before the new field, which is null.
            found = [f if len(f) == len(r) else f.removesuffix(b"\xff" * 4) for f, r in zip(found, raw, strict=True)]
        assert found == raw, column


def test_values_have_the_order_of_their_serialised_bytes(histories: list[History]) -> None:
    for column, values, raw in columns(histories):
        assert ranks(as_keys(serialised(values, freeze(column.type)))) == ranks(raw), column


def test_elements_have_the_order_of_their_type(histories: list[History]) -> None:
    for column, values, raw in columns(histories):
        if str(column.type) in ("counter", "duration"):
            continue
        encode = position_encoder([Column("value", freeze(column.type))])
        wanted = [encode([data], AT) for data in raw]
        found = as_keys(comparable(values, freeze(column.type)))
        pairs = [(f, w) for f, w, data in zip(found, wanted, raw, strict=True) if data]
        assert ranks([f for f, _ in pairs]) == ranks([w for _, w in pairs]), column
