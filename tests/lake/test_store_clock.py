"""This machine's clock is days ahead of the one that gives the files of the lake their times."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.clocks import set_clock
from tests.support.made import add, new_table, settings_at, write
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake import packing, retention, state, store_clock
from writetime.lake.backfilled import delete_old_records
from writetime.lake.commits import put_new
from writetime.lake.parquet import write_file
from writetime.lake.table import LakeTable
from writetime.row_events import stream
from writetime.view import refreshing
from writetime.view.refreshing import refresh
from writetime.view.upkeep import upkeep
from writetime_dagster.resources import LakeResource

_DAYS = 30 * 24 * 3600
# Each deletes files or commits by their ages.
_DELETE: dict[str, Callable[[Settings, LakeTable], object]] = {
    "upkeep": upkeep,
    "stream": lambda settings, table: retention.trim_stream(table, settings.lake.vacuum_hours),
    "logs": lambda settings, table: retention.trim_logs(table, settings.lake.vacuum_hours),
    "refresh": refresh,
    "backfill": lambda _, table: delete_old_records(table),
    "clean-up": lambda _, table: LakeResource().clean_up(f"{table.name}/state"),
}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeTable:
    """A table with replaced files and old commits in each part, and with files of a task that has not committed."""
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    monkeypatch.setattr(config, "load", lambda **_: settings)
    monkeypatch.setattr(refreshing, "TRIM_EVERY", 1)
    for number in range(1, 17):
        add(table, [write(number, 1, number, v="a")], number)
        state.fold(table)
        stream.extend(table)
        refresh(settings, table)
    packing.pack_batches(table, table.changes.load())
    state.compact(table)
    for part in table.parts:
        DeltaTable(part.storage.address).create_checkpoint()
        rows = pa.table({"token": [1]})
        write_file(part.storage, rows, 0, rows["token"])
    add(table, [write(1, 1, 99, v="b")], 99)
    # The record of a backfill that has not committed.
    assert put_new(table.storage, "backfilled/1.json", b"{}")
    return table


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", _DELETE)
def test_nothing_is_deleted(
    name: str, table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if the clocks were right a moment ago. The fault is an error, or is logged by a step that has other work."""
    before, said = files(tmp_path), ""
    assert store_clock.clock_fault(table.changes.storage) is None
    set_clock(monkeypatch, _DAYS)
    try:
        _DELETE[name](settings_at(tmp_path), table)
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
