"""Prints rows as text."""

import json
from collections.abc import Iterable, Sequence
from typing import Any
from unicodedata import combining, east_asian_width

import click
import pyarrow as pa

from writetime.core.printing import json_value, printable


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under the names of their columns, each on one line. A terminal wraps long lines."""
    lines = [names, *([printable(value) for value in row] for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (value + " " * (width - _width(value)) for value, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def print_parts(names: Sequence[str], parts: Iterable[pa.Table]) -> None:
    """Print these columns of the parts of a table, with their values in JSON form."""
    columns = ([[_shown(json_value(value)) for value in part[name]] for name in names] for part in parts)
    print_table(names, (row for part in columns for row in zip(*part, strict=True)))


def _shown(value: Any) -> str:
    """Return nothing for null, text as it is, else JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _width(text: str) -> int:
    """Return the number of terminal columns of a text: wide characters take two, and combining ones none."""
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
