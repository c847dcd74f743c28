"""Arrow values as text and JSON, of the whole range of CQL: Python's own dates end at the year 9999."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import numpy as np
import orjson
import pyarrow as pa
from rich.cells import cell_len

from writetime.printing import printable


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under the names of their columns, each on one line: a terminal wraps what is too long."""
    lines = [names, *([printable(value) for value in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (value + " " * (width - cell_len(value)) for value, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def json_line(row: Mapping[str, pa.Scalar]) -> bytes:
    """Return a row as one JSON object."""
    return orjson.dumps({name: json_value(value) for name, value in row.items()})


def json_value(scalar: pa.Scalar) -> Any:
    """Return a value as JSON has it: dates and times in ISO 8601, bytes as `0x...`, maps as lists of pairs unless their
    keys are text."""
    if not scalar.is_valid:
        return None
    arrow = scalar.type
    if pa.types.is_struct(arrow):
        return {field.name: json_value(scalar[i]) for i, field in enumerate(arrow)}
    if pa.types.is_map(arrow):
        pairs = [(json_value(entry["key"]), json_value(entry["value"])) for entry in scalar.values]
        return dict(pairs) if pa.types.is_string(arrow.key_type) else [list(pair) for pair in pairs]
    if pa.types.is_list(arrow):
        return [json_value(element) for element in scalar.values]
    if pa.types.is_date(arrow):
        return str(np.datetime64(scalar.value, "D"))
    if pa.types.is_timestamp(arrow):
        return f"{np.datetime64(scalar.value, 'us')}Z"
    value = scalar.as_py()
    return "0x" + value.hex() if isinstance(value, bytes) else value
