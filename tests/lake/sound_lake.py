"""A lake of a table with some batches of writes, to be damaged by tests, and its rows."""

from pathlib import Path

import pytest

from tests.support.made import add, new_table, write
from tests.support.repaired import NAME, Rows, settings_of
from writetime.core import config
from writetime.lake import state
from writetime.lake.table import open_table
from writetime.row_events import stream
from writetime.view.refreshing import refresh

PARTS = ("changes", "state", "view", "row_events")
BATCHES = 23


def batch(number: int) -> dict[tuple[int, int], str]:
    """The texts that a batch writes, by key."""
    return {(key, 1): f"batch {number}" for key in range(number % 5, 30, 3)}


def rows() -> Rows:
    """The rows after all batches."""
    return {key: value for number in range(BATCHES) for key, value in batch(number).items()}


def land() -> None:
    """Add the batches that the changes do not have."""
    table = open_table(config.load(), NAME)
    for number in range(BATCHES):
        add(table, [write(i, n, number + 1, v=v) for (i, n), v in batch(number).items()], number)


def make(folder: Path) -> Path:
    """Make a lake below a folder; return its path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WRITETIME_CONFIG", str(settings_of(folder)))
        settings = config.load()
    table = new_table(folder / "lake", cache_gib=0)
    for number in range(BATCHES):
        add(table, [write(i, n, number + 1, v=v) for (i, n), v in batch(number).items()], number)
        for step in (lambda: state.fold(table), lambda: refresh(settings, table), lambda: stream.extend(table)):
            step()
    return folder / "lake"
