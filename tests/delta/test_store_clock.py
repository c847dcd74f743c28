"""This machine's clock is far ahead of the one that gives the files of the lake their times, or far behind it."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.clocks import set_clock
from tests.support.deletions import DELETE, files, leave_files, replace_files
from tests.support.made import add, new_table, settings_at, write
from writetime.core import config
from writetime.core.errors import WritetimeError
from writetime.delta import store_clock
from writetime.delta.bucketed_table import CHECKPOINT_EVERY
from writetime.lake import packing
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now, time_of_lake
from writetime.row_events.publish import PUBLISHED
from writetime.view import refreshing
from writetime.view.upkeep import upkeep

pytestmark = pytest.mark.long

_DAYS = 30 * 24 * 3600


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeTable:
    """A table with replaced files and old commits in each part, and with files of a task that has not committed."""
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    monkeypatch.setattr(config, "load", lambda *_, **__: settings)
    monkeypatch.setattr(refreshing, "TRIM_EVERY", 1)
    replace_files(tmp_path, table)
    leave_files(table)
    add(table, [write(1, 1, 99, v="b")], 99)
    return table


@pytest.mark.parametrize("name", DELETE)
def test_nothing_is_deleted(
    name: str, table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if the clocks were right a moment ago. The fault is an error, or is logged by a step that has other work."""
    before, said = files(tmp_path), ""
    assert store_clock.clock_fault(table.changes.storage) is None
    set_clock(monkeypatch, _DAYS)
    try:
        DELETE[name](settings_at(tmp_path), table)
    except WritetimeError as e:
        said = str(e)
    assert before <= files(tmp_path)
    assert "this machine's clock is 720.0 h ahead" in said + caplog.text


def test_the_clocks_are_compared_again(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = table.changes.storage
    assert store_clock.clock_fault(storage) is None
    with monkeypatch.context() as patch:
        patch.setattr(store_clock, "_seconds_ahead", lambda _: float(_DAYS))
        assert store_clock.clock_fault(storage) is None
        patch.setattr(store_clock, "VALID_SECONDS", -1.0)
        assert store_clock.clock_fault(storage) is not None
    assert store_clock.clock_fault(storage) is not None
    monkeypatch.setattr(store_clock, "VALID_SECONDS", -1.0)
    assert store_clock.clock_fault(storage) is None
    for seconds in (-_DAYS, 600):
        with monkeypatch.context() as patch:
            set_clock(patch, seconds)
            assert store_clock.clock_fault(storage) is None


def test_a_clock_that_jumps_while_maintain_runs(
    table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is deleted by the time after the jump, although the clocks were right when it began."""
    before, pack = files(tmp_path), packing.pack_folded

    def jump(*given: Any) -> int:
        set_clock(monkeypatch, _DAYS)
        return pack(*given)

    monkeypatch.setattr(packing, "pack_folded", jump)
    with pytest.raises(WritetimeError, match=r"this machine's clock is 720\.0 h ahead"):
        upkeep(settings_at(tmp_path), table)
    assert before <= files(tmp_path)


def test_no_checkpoint_is_written_and_no_log_deleted_by_a_clock_that_is_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint leaves out removed files by the clock of the machine that writes it. A vacuum deletes those."""
    table = new_table(tmp_path)
    logs = tmp_path / table.name / "changes/_delta_log"
    with monkeypatch.context() as patch:
        set_clock(patch, _DAYS)
        for number in range(1, 2 * CHECKPOINT_EVERY):
            table.changes.set_property("p", str(number))
            add(table, [write(number, 1, number, v="a")], number)
    assert not list(logs.glob("*.checkpoint.*"))
    assert "no checkpoint is written: this machine's clock is 720.0 h ahead" in caplog.text
    for number in range(2 * CHECKPOINT_EVERY, 3 * CHECKPOINT_EVERY + 1):
        add(table, [write(number, 1, number, v="a")], number)
    assert list(logs.glob("*.checkpoint.*"))


@pytest.mark.parametrize("behind", [7200, _DAYS])
def test_what_a_machine_replaces_whose_clock_is_behind_stays(
    behind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a query may still read it. A machine whose clock is right deletes by the times that the other one wrote."""
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    monkeypatch.setattr(config, "load", lambda *_, **__: settings)
    monkeypatch.setattr(refreshing, "TRIM_EVERY", 1)
    # The clocks were right when they were compared first.
    replace_files(tmp_path, table)
    # By their own age, all files are old.
    old = time_now() / 1e6 - 2 * _DAYS
    for path in tmp_path.glob("*/*/token_bucket*/*"):
        os.utime(path, (old, old))
    with monkeypatch.context() as patch:
        set_clock(patch, -behind)
        replace_files(tmp_path, table, 100)
        assert abs(time_of_lake(table) - time_now() - behind * 1_000_000) < 60_000_000
    leave_files(table)
    add(table, [write(1, 1, 999, v="b")], 999)
    before = files(tmp_path)
    for name in ("stream", "logs", "refresh", "backfill", "clean-up", "upkeep"):
        DELETE[name](settings, table)
        assert before <= files(tmp_path), name
    assert f"this machine's clock is {behind / 3600:.1f} h behind" in caplog.text


def test_nothing_is_merged_too_early_that_a_machine_adds_whose_clock_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes and row events of a moment ago are not older than a week."""
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    events = settings.row_events.model_copy(update={"keep_days": 7.0})
    settings = settings.model_copy(update={"row_events": events})
    with monkeypatch.context() as patch:
        set_clock(patch, -_DAYS)
        replace_files(tmp_path, table)
        table.row_events.append([], PUBLISHED, 16)
    count = len(table.changes.load().files)
    done = upkeep(settings, table)
    assert (done["history_files_merged"], done["row_events_merged"]) == (0, 0)
    for part in (table.changes, table.row_events):
        assert all(file.added_at > time_now() - _DAYS * 500_000 for file in part.load().files)
    assert len(table.changes.load().files) == count > 0
