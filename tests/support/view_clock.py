"""Clocks of views that tests set: the upkeep of a view has one, and the time of its rows is another."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

from writetime.delta import commits
from writetime.lake import view_retention, views
from writetime.view import refreshing


@contextmanager
def upkeep_at(seconds: float) -> Iterator[None]:
    """Let it be this time for the log and the upkeep of views, which trim at every second refresh."""
    with (
        patch.object(view_retention, "time", SimpleNamespace(time=lambda: seconds)),
        patch.object(commits, "millis", lambda _: int(seconds * 1000)),
        patch.object(refreshing, "TRIM_EVERY", 2),
    ):
        yield


@contextmanager
def rows_at(micros: int) -> Iterator[None]:
    """Let views have the rows of this time."""
    with patch.object(views, "time_now", lambda: micros), patch.object(refreshing, "time_of_lake", lambda _: micros):
        yield
