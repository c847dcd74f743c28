"""The upkeep of a table that another program follows at the same time."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_replay import replayed
from tests.support.lake_answers import unordered, view_rows
from tests.support.made import add, new_table, settings_at, write
from tests.support.view_readers import by_query
from writetime.lake import state, views
from writetime.lake.table import open_table
from writetime.row_events.stream import extend
from writetime.view.refreshing import refresh
from writetime.view.upkeep import maintain

pytestmark = pytest.mark.long


@pytest.mark.parametrize("view", ["vectors", "rewritten"])
def test_the_other_program_is_first_in_each_step(tmp_path: Path, view: str) -> None:
    settings = settings_at(tmp_path, view=view, buckets=2, drop_tombstones_hours=0.0, keep_history_days=0.0)
    table = new_table(tmp_path, buckets=2)
    numbers = itertools.count(1)

    def follow() -> None:
        """The work of another program after a change."""
        number, other = next(numbers), open_table(settings, table.name)
        add(other, [write(number % 7, 1, number, v=str(number))], number)
        extend(other)
        refresh(settings, other)
        state.fold(other)
        state.compact(other)

    def overtaken(function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        done = [function(task) for task in tasks]
        follow()
        return iter(done)

    for _ in range(3):
        follow()
        number = next(numbers)
        add(table, [write(number % 7, 1, number, v="last")], number)
        maintain(settings, table, overtaken)
    maintain(settings, open_table(settings, table.name))
    extend(table)
    wanted = list(views.virtual(table))
    shown = by_query(table.view.storage.address).select(wanted[0].column_names)
    assert unordered([shown]) == unordered(wanted)
    assert replayed(table) == view_rows(wanted)
