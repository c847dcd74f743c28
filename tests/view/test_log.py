"""The log of a view that is refreshed all the time, and its folder, stay small."""

import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.made import add, new_table, settings_at, write
from tests.support.view_readers import by_query
from writetime.lake import packing, state, view_upkeep
from writetime.lake.packing import FAN
from writetime.view import refreshing
from writetime.view.refreshing import refresh

# A day, at one commit per second.
_COUNT, _COUNT_LONG = 300, 86_400
# What an hour stands for: some commits are made within it.
_HOURS = 0.5 / 3600


@pytest.mark.timeout(3600)
def test_a_view_that_is_refreshed_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_long: bool) -> None:
    monkeypatch.setattr(refreshing, "STREAM_HOURS", _HOURS)
    monkeypatch.setattr(view_upkeep, "STREAM_HOURS", _HOURS)
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    count = _COUNT_LONG if is_long else _COUNT
    for number in range(1, count + 1):
        add(table, [write(number % 50, 1, number, v=str(number))], number)
        assert refresh(settings, table).written == 1
        if number % FAN == 0:
            # As landing and publishing do.
            packing.pack_batches(table, table.changes.load())
            state.fold(table)
            state.compact(table)
    folder = Path(table.view.storage.address)
    log = [path.name for path in (folder / "_delta_log").iterdir()]
    assert any("checkpoint" in name for name in log)
    assert len(log) < 250
    live = table.view_files.load()
    assert len(live.files) < 40
    assert sum(1 for path in folder.rglob("*") if path.is_file() and "_delta_log" not in path.parts) < 400
    assert live.rows == by_query(str(folder)).num_rows == 50
    begin = time.perf_counter()
    assert DeltaTable(str(folder)).version() >= count
    print(f"{count} refreshes: {len(live.files)} live files, {len(log)} in the log, ", end="")
    print(f"opened in {(time.perf_counter() - begin) * 1000:.0f} ms")
