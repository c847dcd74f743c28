"""A rebuild gives the same result: the state, the view, the stream of row events."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.commands import run
from tests.support.event_replay import apply, events, in_order, replayed
from tests.support.lake_answers import view_rows
from tests.support.lake_views import compacted
from tests.support.made import SCHEMA, add, new_table, settings_at, write
from tests.support.settings import write_settings
from writetime.cli.main import main
from writetime.delta.bucketed_table import Conflict
from writetime.lake import state, views
from writetime.lake.projection import TooLate
from writetime.lake.table import LakeTable
from writetime.row_events import stream
from writetime.row_events.stream_files import batch_files

pytestmark = pytest.mark.slow


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeTable:
    """A table with a history: folded and new changes, a view and a stream that are behind."""
    made = new_table(tmp_path / "lake", replace(SCHEMA))
    write_settings(settings_at(tmp_path / "lake"), tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    for number in range(6):
        add(made, [write(i, number % 2, number, v=str(number)) for i in range(0, 30, number + 1)], number)
        if number in (1, 3):
            state.fold(made)
            stream.extend(made)
    return made


def generations(table: LakeTable) -> set[int]:
    """The generations of the events in the lake."""
    return {e["generation"] for part in events(table) for e in part.to_pylist()}


def test_all_parts(table: LakeTable) -> None:
    wanted = view_rows(views.virtual(table))
    for file in table.state.load().files:
        Path(table.state.storage.address, file.path).unlink()
    assert "6 files of changes" in run("rebuild", table.name, "state")
    assert view_rows(views.virtual(table)) == wanted
    assert state.fold(table) == 0
    assert f"{len(wanted)} rows" in run("rebuild", table.name, "view")
    assert view_rows(compacted(table)) == wanted
    before = generations(table)
    assert f"{len(wanted)} events" in run("rebuild", table.name, "row_events")
    assert replayed(table) == wanted
    assert generations(table).isdisjoint(before)
    assert CliRunner().invoke(main, ["rebuild", table.name, "dead_letters"]).exit_code == 2


def test_the_stream_continues_after_a_rebuild_of_its_state(table: LakeTable) -> None:
    state.rebuild(table)
    assert stream.extend(table) > 0
    assert replayed(table) == view_rows(views.virtual(table))


def test_the_stream_continues_after_a_rebuild(table: LakeTable) -> None:
    before = {e["event_id"] for part in events(table) for e in part.to_pylist()}
    last = max(number for number, _ in batch_files(table.row_events.load()))
    [generation] = generations(table)
    stream.extend(table, rebuild=True)
    first = list(events(table))
    assert {e["sequence"] for part in first for e in part.to_pylist()} == {last + 1}
    assert not before & {e["event_id"] for part in first for e in part.to_pylist()}
    add(table, [write(0, 0, 9, v="after")], 9)
    assert stream.extend(table) == 1
    parts = list(events(table))
    assert in_order(apply(parts)) == view_rows(views.virtual(table))
    [later] = generations(table)
    assert later > generation


def test_a_batch_that_comes_in_between(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def extended(tasks: object) -> None:
        assert stream.extend(table) > 0

    with pytest.raises(Conflict, match="run this again"):
        stream.extend(table, run=lambda function, tasks: [extended(tasks), *map(function, tasks)][1:], rebuild=True)
    assert replayed(table) == view_rows(views.virtual(table))


def test_missing_parts(table: LakeTable) -> None:
    """The versions of the state are others then, of which the stream remembers one."""
    wanted = view_rows(views.virtual(table))
    remembered = table.state.load().version
    for part in ("state", "view"):
        shutil.rmtree(Path(table.state.storage.address).parent / part)
    assert f"`writetime rebuild {table.name}`" in CliRunner().invoke(main, ["view", table.name]).stderr
    assert "rows" in run("rebuild", table.name, "view")
    assert view_rows(views.virtual(table)) == view_rows(compacted(table)) == wanted
    add(table, [write(0, 0, 9, v="after")], 9)
    while table.state.load().version < remembered:
        add(table, [write(0, 0, 10, v="later")], 10 + table.state.load().version)
        state.fold(table)
    with pytest.raises(TooLate, match=f"`writetime rebuild {table.name} row_events`"):
        stream.extend(table)
    run("rebuild", table.name, "row_events")
    assert replayed(table) == view_rows(views.virtual(table))
