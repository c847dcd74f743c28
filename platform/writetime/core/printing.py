"""Untrusted values and text in a form that is safe for programs and terminals.

Values have the whole range of CQL. Python's own dates end at the year 9999, and JSON has only finite numbers.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from writetime.core.arrow import pc

_ROWS = 10_000
_AS_THEY_ARE = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean)


def printable(text: str) -> str:
    """Return text on one line and without control characters for a terminal: these are shown as Python escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def json_line(row: Mapping[str, pa.Scalar], *, nulls: bool = True) -> bytes:
    """Return a row as one JSON object, optionally without nulls."""
    return orjson.dumps({n: json_value(value, nulls=nulls) for n, value in row.items() if nulls or value.is_valid})


def json_lines(rows: pa.Table) -> Iterator[bytes]:
    """Yield rows as JSON objects like `json_line`, several lines at a time with the ends of lines. Whole columns are
    converted at once, because this takes a sixth of the time.
    """
    names = rows.column_names
    for batch in rows.to_batches(_ROWS):
        columns = [_json_values(column) for column in batch.columns]
        lines = (orjson.dumps(dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True))
        yield b"".join(line + b"\n" for line in lines)


def _json_values(column: pa.Array) -> list[Any]:
    """Return the results of `json_value`."""
    arrow = column.type
    if any(kind(arrow) for kind in _AS_THEY_ARE):
        return column.to_pylist()
    if pa.types.is_floating(arrow) and pc.all(pc.is_finite(column)).as_py() in (True, None):
        return column.to_pylist()
    if pa.types.is_binary(arrow):
        return [None if value is None else "0x" + value.hex() for value in column.to_pylist()]
    if pa.types.is_timestamp(arrow) and arrow.unit == "us":
        micros = column.cast(pa.int64()).fill_null(0).to_numpy().view("datetime64[us]")
        texts = np.char.add(np.datetime_as_string(micros), "Z")
        return [text if is_valid else None for text, is_valid in zip(texts.tolist(), column.is_valid(), strict=True)]
    return [json_value(value) for value in column]


def json_value(scalar: pa.Scalar, *, nulls: bool = True) -> Any:
    """Return a value in JSON form, optionally without null fields.

    Dates and times are in ISO 8601, bytes are `0x...`, maps are lists of pairs unless their keys are text. Numbers that
    are not finite are the texts `NaN`, `Infinity` and `-Infinity`, which Cassandra's `INSERT ... JSON` accepts, too.
    """
    if not scalar.is_valid:
        return None
    arrow = scalar.type
    if pa.types.is_struct(arrow):
        fields = ((field.name, scalar[i]) for i, field in enumerate(arrow))
        return {name: json_value(part, nulls=nulls) for name, part in fields if nulls or part.is_valid}
    if pa.types.is_map(arrow):
        pairs = [[json_value(entry[part], nulls=nulls) for part in ("key", "value")] for entry in scalar.values]
        return dict(pairs) if pa.types.is_string(arrow.key_type) else pairs
    if pa.types.is_list(arrow):
        return [json_value(element, nulls=nulls) for element in scalar.values]
    if pa.types.is_date(arrow):
        return str(np.datetime64(scalar.value, "D"))
    if pa.types.is_timestamp(arrow):
        return f"{np.datetime64(scalar.value, 'us')}Z"
    value = scalar.as_py()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return "0x" + value.hex() if isinstance(value, bytes) else value
