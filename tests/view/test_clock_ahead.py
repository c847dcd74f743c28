"""A view and row events computed while a clock was ahead: rows with a TTL are missing until the next step. A clock that
is behind changes nothing.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.clocks import set_clock
from tests.support.event_replay import SECOND, replayed
from tests.support.lake_answers import view_rows
from tests.support.made import add, new_table, rewrite, settings_at, write
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
            patched.setattr(module, "time_of_lake", lambda _: time.time_ns() // 1000 + seconds * SECOND)
        stream.extend(table)
        refresh(settings_at(folder), table)


def test_rows_come_back_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that expired between the two times, and those that changed meanwhile; none that has expired by now."""
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    add(table, [expiring(1, _HOUR), expiring(2, 3 * _HOUR), expiring(3, -1), write(4, 1, 5, v="a")], 1)
    step_ahead(table, tmp_path, monkeypatch, 2 * _HOUR)
    assert ids(table) == ([2, 4], [2, 4])
    found = compare_view(table)
    assert found is not None
    assert found.fault is not None
    assert "the next refresh brings them back" in found.fault
    add(table, [expiring(5, _HOUR), write(6, 1, 5, v="a")], 2)
    done = refresh(settings, table)
    assert (done.written, done.marked, done.whole) == (3, 0, False)
    assert stream.extend(table) == 3
    assert ids(table) == ([1, 2, 4, 5, 6], [1, 2, 4, 5, 6])
    assert replayed(table) == view_rows(views.virtual(table))
    found = compare_view(table)
    assert found is not None
    assert found.fault is None


def test_the_present_time_is_kept_if_no_row_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the rows that were ahead would be reported in every run."""
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    add(table, [write(1, 1, 5, v="a")], 1)
    step_ahead(table, tmp_path, monkeypatch, 2 * _HOUR)
    versions = []
    for _ in range(2):
        assert refresh(settings, table).written == 0
        assert stream.extend(table) == 0
        versions.append((table.view.load().version, table.row_events.load().version))
        found = compare_view(table)
        assert found is not None
        assert found.fault is None
    assert versions[0] == versions[1]


def test_clocks_that_differ_a_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that has expired by one clock does not return by another."""
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


def test_a_machine_whose_clock_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that have expired by the clocks of the other machines do not come back, and rows do not expire late."""
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    add(table, [expiring(1, -_HOUR), expiring(2, _HOUR), write(3, 1, 5, v="a")], 1)
    refresh(settings, table)
    stream.extend(table)
    assert ids(table) == ([2, 3], [2, 3])
    add(table, [expiring(4, -_HOUR), write(5, 1, 5, v="a")], 2)
    with monkeypatch.context() as patched:
        set_clock(patched, -2 * _HOUR)
        refresh(settings, table)
        stream.extend(table)
        assert ids(table) == ([2, 3, 5], [2, 3, 5])
        rewrite(table)
        assert ids(table)[0] == [2, 3, 5]
