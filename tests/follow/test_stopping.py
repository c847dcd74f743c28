"""A program that must end does not finish a long step first, and a step that did not finish is repeated."""

import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.made import add, new_table, settings_at, write
from writetime.core.config import Settings, TableEntry
from writetime.delta import buckets
from writetime.delta.bucketed_table import Conflict
from writetime.follow.pipeline import TablePipeline
from writetime.lake.followed_tables import FollowedTable
from writetime.landing.following import TableLanding
from writetime.view import refreshing
from writetime.wire.watermarks import Sources


def pipeline(settings: Settings, name: str, stop: threading.Event) -> TablePipeline:
    """The steps of a table after landing."""
    nothing: Any = SimpleNamespace(name=name, waiting=lambda _: 0, is_due=lambda _: False, report_steps=lambda _: None)
    entry = FollowedTable(name, TableEntry(row_events=False))
    return TablePipeline(settings, cast(TableLanding, nothing), entry, stop=stop)


def test_a_first_view_ends_at_its_next_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, stop = settings_at(tmp_path), threading.Event()
    table = new_table(tmp_path)
    monkeypatch.setattr(buckets, "FEW_ROWS", 0)
    assert add(table, [write(i, 0, i + 1, v="a") for i in range(100)], 1)
    done: list[int] = []
    whole = refreshing.WholeBucket.run

    def stopped(task: refreshing.WholeBucket) -> Any:
        done.append(len(done))
        stop.set()
        return whole(task)

    monkeypatch.setattr(refreshing.WholeBucket, "run", stopped)
    ended = pipeline(settings, table.name, stop)
    ended.run({}, Sources())
    assert (len(done), table.view.load().files, ended.view.fault, ended.view.failures) == (1, [], None, 0)
    assert ended.upkeep.is_behind
    pipeline(settings, table.name, threading.Event()).run({}, Sources())
    assert table.view.load().rows == 100


def test_an_upkeep_that_fails_keeps_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number, the upkeep knows whether it is the turn of the logs."""
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    numbers: list[int] = []

    def keep_up(*given: Any) -> int:
        numbers.append(given[2])
        if len(numbers) == 1:
            raise Conflict("another process was first")
        return 0

    monkeypatch.setattr("writetime.follow.pipeline.keep_up", keep_up)
    followed = pipeline(settings, table.name, threading.Event())
    for _ in range(3):
        with suppress(Conflict):
            followed._keep_up()
    assert numbers == [1, 1, 2]
