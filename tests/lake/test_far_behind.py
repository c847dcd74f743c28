"""Nothing is kept for a view that is too far behind to continue, and the files of all other steps are kept."""

import os
import time
from pathlib import Path

import pytest

from tests.support.event_replay import replayed
from tests.support.lake_answers import view_rows
from tests.support.made import add, new_table, settings_at, write
from writetime.lake import packing, retention, state, views
from writetime.lake.table import LakeTable, open_table
from writetime.row_events import stream
from writetime.view.refreshing import refresh


def watermarks(table: LakeTable, numbers: range) -> None:
    """Add commits without files."""
    for number in numbers:
        table.changes.append([], "watermarks", number)


@pytest.fixture
def behind(tmp_path: Path) -> LakeTable:
    """A table whose view was refreshed once, before all that its logs have."""
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    add(table, [write(1, 1, 1, v="a")], 1)
    state.fold(table)
    refresh(settings, table)
    watermarks(table, range(2, 45))
    state.fold(table)
    table.changes.trim_log(table.changes.load().version, 0, 0)
    return open_table(settings, table.name)


def test_files_stay_for_row_events(behind: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are behind the state, and at a version whose files were packed since."""
    table = behind
    for number in range(2, 34):
        add(table, [write(id_, 1, number, v="b") for id_ in range(10)], number)
    stream.extend(table)
    add(table, [write(id_, 1, 99, v="c") for id_ in range(10)], 99)
    state.fold(table)
    assert packing.pack_batches(table, table.changes.load()) == 32
    # An hour later:
    monkeypatch.setattr(retention, "STREAM_HOURS", 0)
    retention.trim_stream(table, 168)
    table = open_table(settings_at(tmp_path), table.name)
    assert stream.extend(table) == 10
    assert replayed(table) == view_rows(views.virtual(table))


def test_no_log_stays_for_the_view(behind: LakeTable) -> None:
    table = behind
    watermarks(table, range(45, 200))
    state.fold(table)
    log = Path(table.changes.storage.address, "_delta_log")
    for file in log.iterdir():
        os.utime(file, (0, time.time() - 2 * 3600))
    retention.trim_logs(table, 168)
    assert len(list(log.glob("*.json"))) < 25
    table.changes.load(state.folded_version(table.state.load()))
