"""A program that follows tables, and its views."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.lake_answers import unordered
from tests.support.view_readers import by_query
from writetime.core.config import Settings
from writetime.follow.program import Follower
from writetime.lake import views
from writetime.lake.table import LakeTable, is_in_lake, open_table, table_storage
from writetime.row_events.publish import published_since


@contextmanager
def following(settings: Settings, *names: str) -> Iterator[Follower]:
    """A program that follows tables, in a thread."""
    stop, follower = threading.Event(), Follower(settings, names)
    thread = threading.Thread(target=follower.run, args=(stop,))
    thread.start()
    try:
        yield follower
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def shown(settings: Settings, name: str) -> list[str]:
    """The rows of the compacted view."""
    if not is_in_lake(settings, name):
        return []
    table = open_table(settings, name)
    if not table.view.load().files:
        return []
    names = [column.label for column in table.schema().columns]
    return unordered([by_query(table.view.storage.address).select(names)])


def rows_shown(settings: Settings, name: str) -> int:
    """The number of the compacted view's rows, from its log: reading the rows takes ten times as long."""
    view = LakeTable(table_storage(settings, name)).view
    return view.load().rows if view.exists() else 0


def computed(settings: Settings, name: str) -> list[str]:
    """The rows of the virtual view."""
    return unordered(views.virtual(open_table(settings, name)))


def is_done(settings: Settings, name: str, rows: int) -> bool:
    """Whether the compacted view has so many rows, and those of the virtual view."""
    if rows_shown(settings, name) != rows:
        return False
    found = shown(settings, name)
    return len(found) == rows and found == computed(settings, name)


def has_published(settings: Settings, name: str, events: int) -> bool:
    """Whether the topic has so many row events. The view may be refreshed first: each step has its own time."""
    return published_since(settings, name, {}, events) == events
