"""The compacted view of a table without a database, when it cannot be compared."""

from pathlib import Path

import pytest

from tests.support.made import add, new_table, settings_at, write
from writetime.lake.table import LakeTable
from writetime.verify.compacted_view import compare_view
from writetime.view.refreshing import refresh


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    made = new_table(tmp_path / "lake")
    assert add(made, [write(i, 0, i + 1, v="a") for i in range(50)], 1)
    refresh(settings_at(tmp_path / "lake"), made)
    return made


@pytest.mark.parametrize("side", ["view", "changes"])
def test_a_missing_file_is_named(table: LakeTable, side: str) -> None:
    """It is a fault of the view, and not of the program that proves it."""
    found = compare_view(table)
    assert found is not None
    assert (found.rows, found.expected, found.fault) == (50, 50, None)
    part = getattr(table, side)
    path = part.load().files[0].path
    (Path(part.storage.address) / path).unlink()
    found = compare_view(table)
    assert found is not None
    assert found.fault is not None
    assert path.rpartition("/")[2] in found.fault
    assert f"`writetime rebuild {table.name} view`" in found.fault
