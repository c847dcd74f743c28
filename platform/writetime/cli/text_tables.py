"""Prints rows as text."""

import json
from collections.abc import Iterable, Sequence
from typing import Any
from unicodedata import combining, east_asian_width

import click

from writetime.core.printing import printable


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under the names of their columns, each on one line. A terminal wraps long lines."""
    lines = [names, *([printable(value) for value in row] for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (value + " " * (width - _width(value)) for value, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def shown(value: Any) -> str:
    """Return a value of `json_value` as the text of a table: nothing for null, text as it is, else JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _width(text: str) -> int:
    """Return the number of terminal columns of a text: wide characters take two, and combining ones none."""
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
