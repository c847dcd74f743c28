"""Untrusted values and text in a form that is safe for programs and terminals.

Values cover the whole range of CQL: Python's own dates end at the year 9999, and JSON has no numbers that are not
finite.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa


def printable(text: str) -> str:
    """Return text on one line and without control characters for a terminal: these are shown as Python escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def json_line(row: Mapping[str, pa.Scalar], *, nulls: bool = True) -> bytes:
    """Return a row as one JSON object, optionally without nulls."""
    return orjson.dumps({n: json_value(value, nulls=nulls) for n, value in row.items() if nulls or value.is_valid})


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
