"""A program that must end does not finish a long step first."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.made import add, new_table, settings_at, write
from writetime.core.config import Settings, TableEntry
from writetime.delta import buckets
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
