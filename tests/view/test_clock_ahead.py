"""A view and row events that were made while a clock was ahead, so that they lack rows with a TTL."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_replay import SECOND, replayed
from tests.support.lake_answers import view_rows
from tests.support.made import add, new_table, settings_at, write
from writetime.lake import views
from writetime.lake.table import LakeTable
from writetime.row_events import stream
from writetime.verify.compacted_view import compare_view
from writetime.view import refreshing
from writetime.view.refreshing import refresh

_HOUR = 3600


def expiring(id_: int, seconds: int) -> dict[str, Any]:
    """A row that expires so many seconds from now."""
    now = time.time_ns() // 1000
    row = write(id_, 1, now, v="a")
    expiry = now // SECOND + seconds
    row["marker"] |= {"ttl": seconds, "expiry": expiry}
    row["v"] |= {"ttl": seconds, "deletion_time": expiry}
    return row


def ids(table: LakeTable) -> tuple[list[int], list[int]]:
    """The rows of the view, and of the row events."""
    return sorted(table.view.read(["id"])["id"].to_pylist()), sorted(row["id"] for row in replayed(table))


def step_ahead(table: LakeTable, folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Add a batch and refresh the view, by a clock that is ahead."""
    with monkeypatch.context() as patched:
        for module in (stream, refreshing):
            patched.setattr(module, "time_now", lambda: time.time_ns() // 1000 + seconds * SECOND)
        stream.extend(table)
        refresh(settings_at(folder), table)


def test_rows_come_back_once_view_and_events_are_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then, a step never goes back in time, and changes are followed."""
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    add(table, [expiring(1, _HOUR), write(2, 1, 5, v="a")], 1)
    step_ahead(table, tmp_path, monkeypatch, 2 * _HOUR)
    assert ids(table) == ([2], [2])
    found = compare_view(table)
    assert found is not None
    assert found.fault is not None
    assert f"`writetime rebuild {table.name} view`" in found.fault
    add(table, [expiring(3, _HOUR), write(5, 1, 5, v="a")], 2)
    refresh(settings, table)
    stream.extend(table)
    assert ids(table) == ([2, 5], [2, 5])
    refresh(settings, table, whole=True)
    stream.extend(table, rebuild=True)
    assert ids(table) == ([1, 2, 3, 5], [1, 2, 3, 5])
    found = compare_view(table)
    assert found is not None
    assert found.fault is None
    add(table, [expiring(4, _HOUR)], 3)
    refresh(settings, table)
    assert stream.extend(table) == 1
    assert ids(table) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert replayed(table) == view_rows(views.virtual(table))


def test_a_view_that_is_written_whole_anyway_has_the_present_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path)
    add(table, [expiring(1, _HOUR), write(2, 1, 5, v="a")], 1)
    step_ahead(table, tmp_path, monkeypatch, 2 * _HOUR)
    assert ids(table)[0] == [2]
    # Another program deletes what is left.
    view = table.view.load()
    table.view.rewrite(view, view.files, [], data_change=True)
    assert refresh(settings_at(tmp_path), table).whole
    assert ids(table)[0] == [1, 2]


def test_clocks_that_differ_a_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has expired by one does not come back by another."""
    table = new_table(tmp_path)
    add(table, [expiring(1, 20)], 1)
    step_ahead(table, tmp_path, monkeypatch, 30)
    add(table, [expiring(2, _HOUR)], 2)
    refresh(settings_at(tmp_path), table)
    assert stream.extend(table) == 1
    assert ids(table) == ([2], [2])
    found = compare_view(table)
    assert found is not None
    assert found.fault is None
