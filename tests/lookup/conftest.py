"""A table with levels, folded and waiting changes, and deletions."""

import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.made import SCHEMA, add, new_table, settings_at, write
from writetime.delta import buckets
from writetime.delta.buckets import ALL
from writetime.files.cache import Cache
from writetime.lake import state
from writetime.lake.table import LakeTable, open_table

PARTITIONS = 40


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that is made once: the table of each test is a separate copy.

    Partitions 0 to 39 with up to three rows each: two levels of the state, and changes that are not folded in. The
    first level is a file per bucket, the rest are files of all buckets.
    """
    folder = tmp_path_factory.mktemp("made") / "lake"
    table = new_table(folder)
    for number in range(3):
        rows = [write(i, number, 1_000_000 * (number + 1), v=f"{i}/{number}") for i in range(number, PARTITIONS)]
        with patch.object(buckets, "FEW_ROWS", 4096 * bool(number)):
            add(table, rows, number)
            if number < 2:
                state.fold(table)
    assert [len(table.state.load().by_folder[bucket]) for bucket in (0, 1, 2, 3, ALL)] == [1] * 5
    assert len(table.changes.load().by_folder[ALL]) == 2
    return folder


@pytest.fixture
def table(lake: Path, tmp_path: Path) -> LakeTable:
    shutil.copytree(lake, tmp_path / "lake")
    table = open_table(settings_at(tmp_path / "lake"), SCHEMA.full_name)
    table.cache = Cache(tmp_path / "cache", 1 << 30, smallest=0)
    return table
