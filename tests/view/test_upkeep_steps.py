"""The steps of the upkeep of a table: each is done, whatever the others find."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.disks import fill, small_disk
from tests.support.event_replay import replayed
from tests.support.lake_answers import view_rows
from tests.support.made import add, new_table, settings_at, write
from writetime.core.config import Settings
from writetime.delta.parquet import Unreadable
from writetime.lake import state, views
from writetime.lake.projection import ROW_EVENTS
from writetime.lake.table import LakeTable
from writetime.row_events import packing, stream
from writetime.view.refreshing import refresh
from writetime.view.upkeep import keep_up, maintain, upkeep

pytestmark = pytest.mark.slow


def with_events(folder: Path) -> LakeTable:
    """A table with as many batches of row events, folds and refreshes as one file of each part may have."""
    table, settings = new_table(folder, buckets=1), settings_at(folder, buckets=1)
    for number in range(1, packing.FAN + 1):
        add(table, [write(number, 1, number, v=str(number))], number)
        stream.extend(table)
        refresh(settings, table)
        state.fold(table)
    return table


def test_a_damaged_file_of_row_events_stops_no_other_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "FAN", 1000)
    table, settings = with_events(tmp_path), settings_at(tmp_path, buckets=1, keep_history_days=0.0)
    damaged = Path(table.row_events.storage.address) / table.row_events.load().files[0].path
    damaged.write_bytes(b"PAR1")
    left = Path(table.changes.storage.address) / "left-by-a-killed-task.parquet"
    left.write_bytes(b"PAR1")
    os.utime(left, (0, 0))
    files = len(table.changes.load().files)
    with pytest.raises(Unreadable, match=damaged.name):
        upkeep(settings, table)
    assert len(table.changes.load().files) < files
    assert not left.exists()


def test_levels_that_only_others_folded_are_compacted(tmp_path: Path) -> None:
    """As by backfills, between two batches of row events."""
    table, settings = new_table(tmp_path, buckets=1), settings_at(tmp_path, buckets=1)
    for number in range(1, state.FAN + 2):
        add(table, [write(number, 1, number, v=str(number))], number)
        state.fold(table)
    stream.extend(table)
    assert keep_up(settings, table, 1, [ROW_EVENTS]) == 0
    assert len(table.state.load().files) == 1
    assert view_rows(views.virtual(table)) == replayed(table)


@pytest.mark.parametrize("start", [upkeep, maintain])
def test_a_full_disk_is_freed(start: Callable[[Settings, LakeTable], object], tmp_path: Path) -> None:
    """The steps that write have no room until files are deleted."""
    with small_disk(tmp_path, 8192) as disk:
        table, settings = with_events(disk / "lake"), settings_at(disk / "lake", buckets=1, keep_history_days=0.0)
        left = Path(table.changes.storage.address, "left-by-a-killed-task.parquet")
        left.write_bytes(b"a" * 100_000)
        os.utime(left, (0, 0))
        add(table, [write(1, 1, 99, v="new")], 99)
        fill(disk)
        with pytest.raises(OSError, match="No space left on device"):
            start(settings, table)
        assert not left.exists()
        start(settings, table)
        assert "new" in {row["v"] for row in view_rows(views.virtual(table))}
