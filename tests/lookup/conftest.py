"""A table with levels, folded and waiting changes, and deletions."""

from pathlib import Path

import pytest

from tests.support.made import add, new_table, write
from writetime.lake import state
from writetime.lake.cache import Cache
from writetime.lake.table import LakeTable

PARTITIONS = 40


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """Partitions 0 to 39 with up to three rows each: two levels of the state, and changes that are not folded in."""
    table = new_table(tmp_path / "lake")
    table.cache = Cache(tmp_path / "cache", 1 << 30, smallest=0)
    for number in range(3):
        rows = [write(i, number, 1_000_000 * (number + 1), v=f"{i}/{number}") for i in range(number, PARTITIONS)]
        add(table, rows, number)
        if number < 2:
            state.fold(table)
    return table
