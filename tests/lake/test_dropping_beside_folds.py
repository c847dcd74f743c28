"""Tombstones are dropped while changes are folded in, as on a table with continuous writes.

Oracle: our own second path: the view of all changes, merged at once without dropped tombstones.
"""

import random
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import generated
from tests.support.examples import is_long_run
from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, batch, new_table, settings_at, write
from tests.support.timed import SECOND, around, by_value, deletion, rows_at
from writetime.delta import buckets
from writetime.delta.bucketed_table import Conflict
from writetime.delta.buckets import ALL
from writetime.delta.table_changes import TableChange
from writetime.files.merging import write_state
from writetime.lake import retention, state
from writetime.lake.horizon import horizon_of, register_source, watermark
from writetime.lake.table import open_table
from writetime.lake.views import time_now
from writetime.merge import live_rows, merge
from writetime.schema.table import TableSchema
from writetime.view.refreshing import refresh
from writetime.view.upkeep import upkeep

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("schema", [generated.SCHEMA, generated.COUNTERS], ids=lambda s: s.name)
@given(st.data(), st.randoms(use_true_random=False))
# The first one is the simplest.
@settings(max_examples=8 if is_long_run() else 2)
def test_levels_that_come_meanwhile_show_nothing_that_was_deleted(
    schema: TableSchema, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, chooser: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    table, seen = new_table(folder, schema, buckets=2), []
    other = open_table(settings_at(folder, buckets=2), table.name)
    waiting = [around(data.draw(st.lists(generated.change(schema), min_size=3, max_size=6))) for _ in range(6)]

    def land(_: Any) -> None:
        if waiting:
            seen.extend(batch := waiting.pop())
            add(other, batch, len(seen), schema)

    def beside(function: Any, tasks: Any) -> Iterator[Any]:
        for task in tasks:
            yield function(task)
            for step in chooser.sample([land, state.fold, state.fold, state.rebuild if rebuilds else state.compact], 3):
                step(other)

    for second in (101, 103, 106):
        # Files of one bucket and files of all buckets are in one table.
        with patch.object(buckets, "FEW_ROWS", chooser.choice([0, 2, 4096])):
            rebuilds = chooser.random() < 0.3
            land(other)
            state.fold(table)
            with suppress(Conflict) if rebuilds else nullcontext():
                state.drop_tombstones(table, second * SECOND, beside)
        assert rebuilds or horizon_of(table.state.load()) == second * SECOND
        for _ in range(2):
            wanted = live_rows(merge([generated.table(seen, schema)], schema), schema, second)
            assert by_value(rows_at(table, second)) == by_value(view_rows([wanted]))
            state.fold(table)


def test_a_state_that_is_rebuilt_meanwhile_stays(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=2)
    other = open_table(settings_at(tmp_path, buckets=2), table.name)
    add(table, [write(i, 1, 100 * SECOND, v="a") for i in range(4)], 1)
    add(table, [deletion(9, 1, 100 * SECOND)], 2)
    state.rebuild(table)
    # The changes do not have this row, so another rebuild removes it.
    wrong = merge([pa.Table.from_batches([batch([write(7, 1, 101 * SECOND, v="wrong")])])], SCHEMA)
    levels = write_state(table.state.storage, wrong, ALL, 2)
    table.state.commit(table.state.load(), TableChange(add=levels, is_new_data=False))

    def beside(function: Any, tasks: Any) -> Iterator[Any]:
        for task in tasks:
            yield function(task)
        state.rebuild(other)

    with pytest.raises(Conflict, match="run this again"):
        state.drop_tombstones(table, 103 * SECOND, beside)
    assert sorted(row["id"] for row in rows_at(table, 103)) == [0, 1, 2, 3]
    assert state.drop_tombstones(table, 103 * SECOND) == 1
    assert sorted(row["id"] for row in rows_at(table, 103)) == [0, 1, 2, 3]


def test_upkeep_of_a_table_that_is_written_all_the_time(tmp_path: Path) -> None:
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    register_source(table, "n1")
    add(table, [write(i, 1, 1, v="a") for i in range(50)], 1)
    add(table, [deletion(i, 1, 9) for i in range(20)], 2)
    state.fold(table)
    refresh(settings, table)
    table.changes.append([], "n1", 1, watermark("n1", time_now()))
    follow, numbers = open_table(settings, table.name), iter(range(3, 1000))

    def written(function: Any, tasks: Any) -> Iterator[Any]:
        for task in tasks:
            yield function(task)
            # A late write of a row that was deleted is among the others.
            number = next(numbers)
            add(follow, [write(100 + number, 1, time_now(), v="b"), write(number, 1, 5, v="zombie")], number)
            state.fold(follow)
            state.compact(follow)

    with patch.object(buckets, "FEW_ROWS", 0):
        assert upkeep(settings, table, written)["buckets_without_old_tombstones"] == 4
    assert horizon_of(table.state.load()) > 9
    assert state.count_tombstones(table, table.state.load()) == 0
    assert {row["id"] for row in rows_at(table, 100)} == {*range(20, 50), *range(103, 100 + next(numbers))}


def test_upkeep_continues_if_tombstones_cannot_be_dropped(tmp_path: Path) -> None:
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    register_source(table, "n1")
    table.changes.append([], "n1", 1, watermark("n1", time_now()))
    refused = patch.object(state, "drop_tombstones", side_effect=Conflict("it was rewritten"))
    with refused as drop, patch.object(retention, "vacuum", return_value=["a file"]):
        done = upkeep(settings, table)
    assert drop.called
    assert (done["buckets_without_old_tombstones"], done["files_deleted"]) == (0, 1)
