"""Prints rows as text."""

from collections.abc import Iterable, Sequence

import click
from rich.cells import cell_len

from writetime.core.printing import printable


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under the names of their columns, each on one line. A terminal wraps long lines."""
    lines = [names, *([printable(value) for value in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (value + " " * (width - cell_len(value)) for value, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())
