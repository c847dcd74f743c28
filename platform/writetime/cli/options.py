"""Options that several commands have."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Any], Any]


def options(*all_of: Decorator) -> Decorator:
    """Return a decorator that adds options to a command, in their order."""
    return lambda command: functools.reduce(lambda found, option: option(found), reversed(all_of), command)


schema_option = click.option(
    "--schema",
    "schema_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with CREATE TABLE.",
)
output_options = options(
    click.option("--fields", help="The fields to read, separated by commas; default: all."),
    click.option("--output", type=click.Path(path_type=Path), help="Write a .parquet or .arrow file instead."),
    click.option("--stats", is_flag=True, help="Print counts, sizes and time ranges instead of changes."),
)
