"""Partitions with static columns: a batch reads few of their rows, and finds out whether static cells are a row of
their own.

Oracle: a model of CQL (`tests.support.written`) for random writes; else our own second path: `replayed(table) ==
view_rows(...)`.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.decoded_reads import decoded_reads
from tests.support.event_replay import events, replayed
from tests.support.examples import is_long_run
from tests.support.lake_answers import view_rows
from tests.support.made import add, new_table, settings_at, write
from tests.support.view_readers import by_query
from tests.support.written import COLUMNS, ROWS, SCHEMA, SECOND, Write, random_write, rows_after
from writetime.delta import buckets
from writetime.delta.versions import DataFile
from writetime.lake import state, views
from writetime.lake.table import LakeTable
from writetime.row_events import changed_rows, stream
from writetime.view import refreshing
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.long

# The batches of `test_random_writes`, whose cost grows with the square of their number.
_BATCHES = 30 if is_long_run() else 10


def static(id_: int, at: int) -> dict[str, Any]:
    return Write("static", at, id_, 0, 0, at, None).change


def deletion(id_: int, n: int, at: int) -> dict[str, Any]:
    return Write("row", at, id_, n, 0, 0, None).change


@pytest.fixture
def read() -> Iterator[list[tuple[DataFile, Any]]]:
    """The rows that were read by their places."""
    with decoded_reads("rows") as found:
        yield found


def rows_read(table: LakeTable, folder: Path, read: list[Any]) -> tuple[int, int]:
    """Find the events of a batch, and refresh the view; return the rows that each read."""
    counts = []
    for step in (lambda: stream.extend(table), lambda: refresh(settings_at(folder), table)):
        read.clear()
        step()
        counts.append(sum(batch.num_rows for _, batches in read for batch in batches))
    return counts[0], counts[1]


@pytest.mark.parametrize("size", [1_000, 100_000 if is_long_run() else 10_000])
def test_a_write_to_a_wide_partition_reads_few_rows(tmp_path: Path, read: list[Any], size: int) -> None:
    table = new_table(tmp_path, SCHEMA, buckets=1)
    add(table, [static(1, 5), *(write(1, n, 5, v="a") for n in range(size))], 1, SCHEMA)
    state.fold(table)
    rows_read(table, tmp_path, read)
    changes = [write(1, -1, 6, v="b"), write(1, size, 6, v="b"), deletion(1, size // 2, 7), deletion(1, 0, 7)]
    for number, change in enumerate(changes, 2):
        add(table, [change], number, SCHEMA)
        assert max(rows_read(table, tmp_path, read)) < 40
    # The first rows are dead by now.
    gone = 300
    add(table, [deletion(1, n, 8) for n in range(-1, gone)], 10, SCHEMA)
    rows_read(table, tmp_path, read)
    state.fold(table)
    state.compact(table)
    add(table, [write(1, size + 1, 9, v="c")], 11, SCHEMA)
    assert gone < max(rows_read(table, tmp_path, read)) < 5_000
    assert [part["kind"].to_pylist() for part in events(table)][-1] == ["CREATE"]
    assert replayed(table) == view_rows(views.virtual(table))


def test_a_partition_without_rows_is_read_whole_once(tmp_path: Path, read: list[int]) -> None:
    table = new_table(tmp_path, SCHEMA, buckets=1)
    size = 5_000
    add(table, [static(1, 5), *(deletion(1, n, 5) for n in range(size))], 1, SCHEMA)
    state.fold(table)
    rows_read(table, tmp_path, read)
    add(table, [static(1, 6)], 2, SCHEMA)
    assert max(rows_read(table, tmp_path, read)) == size + 1
    state.fold(table)
    add(table, [write(1, 7, 7, v="a")], 3, SCHEMA)
    # The static row is one until now.
    assert size < max(rows_read(table, tmp_path, read)) < 2.2 * size
    assert [part["kind"].to_pylist() for part in events(table)][-1] == ["DELETE", "CREATE"]
    assert replayed(table) == view_rows(views.virtual(table))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long_only("one seed writes in all ways")) for seed in (1, 2))]
)
def test_random_writes(tmp_path: Path, seed: int) -> None:
    """The stream and the view are the rows of a plain model of CQL."""
    chooser = random.Random(seed)
    settings, table = settings_at(tmp_path, buckets=2), new_table(tmp_path, SCHEMA, buckets=2)
    writes: list[Write] = []
    held: list[Write] = []
    second = 1_000
    for number in range(1, _BATCHES):
        second += chooser.randint(0, 3)
        first = second * SECOND + number * 1000
        new = [random_write(chooser, first + i) for i in range(chooser.randint(0, 40))]
        # Few partitions, so that rows and static cells meet.
        new = [Write(w.kind, w.at, w.id % 5, w.n, w.until, w.value, w.expires) for w in new]
        late = [write for write in new if chooser.random() < 0.1]
        arrived = [*(write for write in new if write not in late), *held]
        held = late
        writes += arrived
        add(table, [write.change for write in arrived], number, SCHEMA)
        now = second * SECOND + 999_999
        with (
            patch.object(buckets, "FEW_ROWS", chooser.choice([0, 4096])),
            patch.object(changed_rows, "FIRST_ROWS", chooser.choice([1, 2, 3, ROWS])),
            patch.object(changed_rows, "GROWTH", 2),
            patch.object(changed_rows.ChangedRows, "_count_parts", return_value=chooser.choice([1, 2])),
            patch.object(views, "time_now", lambda now=now: now),
            patch.object(refreshing, "time_of_lake", lambda _, now=now: now),
        ):
            if chooser.random() < 0.3:
                state.fold(table)
                state.compact(table)
            stream.extend(table, now)
            refresh(settings, table)
        found = by_query(table.view.storage.address).select(list(COLUMNS))
        wanted = sorted(rows_after(writes, second), key=str)
        assert sorted((tuple(row.values()) for row in found.to_pylist()), key=str) == wanted
        assert sorted((tuple(row[name] for name in COLUMNS) for row in replayed(table)), key=str) == wanted
