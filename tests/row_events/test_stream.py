"""The stream of row events in the lake: folded, compacted, killed or run twice, it rebuilds the view.

Oracle: our own second path: `replayed(table) == view_rows(...)`. `tests/lake/histories` compares events with the
database.
"""

import random
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support import generated
from tests.support.event_replay import SECOND, events, replayed
from tests.support.examples import examples, is_long_run
from tests.support.lake_answers import unordered, view_rows
from tests.support.made import SCHEMA, add, cell, new_table, rewrite, settings_at, write
from tests.support.view_readers import by_query
from writetime.core.errors import WritetimeError
from writetime.delta import buckets
from writetime.delta.bucketed_table import BucketedTable, Conflict
from writetime.delta.parquet import WrittenFile
from writetime.delta.table_changes import TableChange
from writetime.lake import packing, retention, state, views
from writetime.lake.projection import ROW_EVENTS, VIEW, moved_on
from writetime.lake.table import LakeTable, open_table
from writetime.row_events import changed_rows, stream
from writetime.schema.table import Column, DroppedColumn
from writetime.schema.types import Native
from writetime.view.refreshing import refresh
from writetime.view.upkeep import maintain, upkeep

pytestmark = pytest.mark.slow


def kinds(table: LakeTable, sequence: int) -> dict[tuple[int, int], str]:
    """The kind of the event of each row in a batch."""
    found = {}
    for part in events(table):
        for row in part.to_pylist():
            if row["sequence"] == sequence:
                image = row["after"] or row["before"]
                found[image["id"], image["n"]] = row["kind"]
    return found


def rows_at(table: LakeTable, second: int) -> list[pa.Table]:
    """The rows of the virtual view."""
    return [replace(view, as_of=second * SECOND).rows() for view in views.bucket_views(table)]


@given(st.lists(st.lists(generated.change(), max_size=4), max_size=4), st.randoms(use_true_random=False))
@examples(12)
def test_the_stream_is_the_view(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[generated.Change]], chooser: random.Random
) -> None:
    table = new_table(tmp_path_factory.mktemp("lake"), generated.SCHEMA, buckets=2)
    second = 99
    for number, changes in enumerate(batches):
        second += chooser.randint(0, 2)
        # Files of one bucket and files of all buckets are in one table.
        with (
            patch.object(buckets, "FEW_ROWS", chooser.choice([0, 1, 4096])),
            patch.object(changed_rows, "FIRST_ROWS", chooser.choice([1, 2, 16])),
            patch.object(changed_rows, "GROWTH", 2),
        ):
            add(table, changes, number, generated.SCHEMA)
            # Cells that lived at the last batch, and expired since, may be dropped.
            drop = partial(state.drop_tombstones, horizon=second * SECOND)
            for step in chooser.sample([state.fold, state.compact, rewrite, drop], chooser.randint(0, 3)):
                step(table)
            if chooser.random() < 0.7:
                # Sometimes by a clock that is ahead, so that all that expires has, until the next batch.
                stream.extend(table, (second + chooser.choice([0, 0, 1000])) * SECOND)
                if chooser.random() < 0.5:
                    stream.extend(table, second * SECOND)
                    assert replayed(table) == view_rows(rows_at(table, second))
    stream.extend(table, 110 * SECOND)
    # By then all that expires has.
    assert replayed(table) == view_rows(views.virtual(table))


def test_a_batch_reads_and_reports_its_changes(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=1)
    add(table, [write(i, n, 5, v="a") for i in range(100) for n in range(2)], 1)
    assert stream.extend(table) == 200
    assert stream.extend(table) == 0
    state.fold(table)
    add(table, [write(7, 1, 6, v="b"), write(8, 0, 4, v="old"), write(200, 1, 6, v="c")], 2)
    # The same values written again change nothing that is visible.
    add(table, [write(9, 1, 6, v="a")], 3)
    assert stream.extend(table) == 2
    assert kinds(table, 2) == {(7, 1): "UPDATE", (200, 1): "CREATE"}
    assert replayed(table) == view_rows(views.virtual(table))
    partition = {**write(7, 0, 9), "kind": "partition_tombstone", "n": None, "position": b"", "marker": None}
    add(table, [{**partition, "tombstone": {"write_time": 9, "deletion_time": 1}}], 4)
    assert stream.extend(table) == 2
    assert kinds(table, 3) == {(7, 0): "DELETE", (7, 1): "DELETE"}


def expiring(id_: int, n: int, expiry: int, **values: Any) -> dict[str, Any]:
    row = write(id_, n, 5, **values)
    cells = {name: {**row[name], "ttl": 10, "deletion_time": expiry} for name in values}
    return {**row, "marker": {"write_time": 5, "ttl": 10, "expiry": expiry}, **cells}


def test_expiry_is_an_event(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=2)
    plain = write(2, 1, 5, v="x", w=1)
    plain["w"] |= {"ttl": 10, "deletion_time": 2000}
    add(table, [expiring(1, 1, 2000, v="a"), plain, expiring(3, 1, 3000, v="a"), write(4, 1, 5, v="a")], 1)
    assert stream.extend(table, 1999 * SECOND) == 4
    state.fold(table)
    assert stream.extend(table, 1999 * SECOND) == 0
    assert stream.extend(table, 2000 * SECOND) == 2
    assert kinds(table, 2) == {(1, 1): "DELETE", (2, 1): "UPDATE"}
    assert stream.extend(table, 2999 * SECOND) == 0
    # An instant that is a little earlier than the last one does not bring rows back, as clocks differ.
    assert stream.extend(table, 2940 * SECOND) == 0
    assert stream.extend(table, 3000 * SECOND) == 1
    assert replayed(table) == view_rows(views.virtual(table))


def test_much_expires_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a batch with few changes is computed one bucket at a time; some buckets have changes, some only expire."""
    monkeypatch.setattr(buckets, "FEW_ROWS", 2)
    table = new_table(tmp_path, buckets=16)
    add(table, [expiring(i, 1, 2000, v="a") for i in range(100)], 1)
    assert stream.extend(table, 1999 * SECOND) == 100
    state.fold(table)
    later = [write(i, 1, 6, v="b") for i in range(0, 100, 10)] + [write(i, 2, 6, v="c") for i in range(7)]
    add(table, later, 2)
    assert stream.extend(table, 2000 * SECOND) == 107
    counts = Counter(kinds(table, 2).values())
    assert counts == {"DELETE": 90, "UPDATE": 10, "CREATE": 7}
    assert len({file.bucket for file in table.row_events.load().files}) == 16
    assert replayed(table) == view_rows(views.virtual(table))


def test_a_killed_batch_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    add(table, [write(i, 1, 5, v="a") for i in range(20)], 1)
    stream.extend(table, SECOND)
    state.fold(table)
    add(table, [write(i, 1, 6, v="b") for i in range(10)], 2)

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(BucketedTable, "commit", killed)
        with pytest.raises(Killed):
            stream.extend(table, SECOND)
    add(table, [write(i, 1, 7, v="c") for i in range(5, 15)], 3)
    state.fold(table)
    state.compact(table)
    assert stream.extend(table, SECOND) == 15
    assert replayed(table) == view_rows(views.virtual(table))


def test_one_of_two_that_add_the_same_batch_counts(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    add(table, [write(1, 1, 5, v="a")], 1)

    def twice(function: Any, tasks: Any) -> list[WrittenFile]:
        assert stream.extend(table, SECOND) == 1
        return [function(task) for task in tasks]

    with pytest.raises(Conflict, match=r"batch 1 is not added: .*row_events has been rewritten.*run this again"):
        stream.extend(table, SECOND, twice)
    assert replayed(table) == view_rows(views.virtual(table))


def test_a_batch_after_that_of_another_process_is_made_again(tmp_path: Path) -> None:
    """The other one went up to earlier changes."""
    table = new_table(tmp_path)
    add(table, [write(1, 1, 1, v="a")], 1)
    stream.extend(table)
    table.changes.append([], "watermarks", 1)
    last = ROW_EVENTS.position(table.row_events.load())
    moved = last and moved_on(table, last)
    assert moved
    add(table, [write(2, 1, 2, v="b")], 2)

    def second(function: Any, tasks: Any) -> list[WrittenFile]:
        ROW_EVENTS.commit(table, table.row_events.load(), TableChange(), moved)
        return [function(task) for task in tasks]

    with pytest.raises(Conflict, match=r"batch 2 is not added: .*run this again"):
        stream.extend(table, run=second)
    assert stream.extend(table) == 1
    assert replayed(table) == view_rows(views.virtual(table))


def test_columns_come_and_go(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    only_w = {**write(2, 1, 5, w=1), "marker": None}
    add(table, [write(1, 1, 5, v="a", w=1), only_w], 1)
    stream.extend(table)
    state.fold(table)
    grown = replace(SCHEMA, regular=(*SCHEMA.regular, Column("x", Native("text"))))
    table.follow(grown)
    add(table, [write(3, 1, 5, x="new")], 2, grown)
    assert stream.extend(table) == 1
    assert replayed(table) == view_rows(views.virtual(table))
    dropped = DroppedColumn("w", Native("int"), False, 9)
    table.follow(replace(grown, regular=tuple(c for c in grown.regular if c.name != "w"), dropped=(dropped,)))
    # A row of which only the dropped column was ever written goes with it.
    assert stream.extend(table) == 1
    assert kinds(table, 3) == {(2, 1): "DELETE"}
    add(table, [write(1, 1, 6, v="b")], 3)
    assert stream.extend(table) == 1


def test_a_stream_that_is_too_late_names_the_remedy(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=1)
    for number in range(8):
        add(table, [write(1, 1, number, v=str(number))], number)
        state.fold(table)
        if number == 0:
            stream.extend(table)
    state.compact(table)
    retention.vacuum(table, 0)
    with pytest.raises(WritetimeError, match=re.escape("writetime rebuild shop.items row_events")):
        stream.extend(table)


def test_a_batch_after_a_long_time_without_changes(tmp_path: Path) -> None:
    """Since the last batch, data expired, tombstones were dropped, and all files and commits from then were deleted."""
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    expires = {"marker": None, "v": {**cell("a", 1), "ttl": 5, "deletion_time": 105}}
    add(
        table,
        [
            write(1, 1, 1) | expires,
            write(2, 1, 1, v="b"),
            {**write(3, 1, 1), "tombstone": {"write_time": 2, "deletion_time": 90}},
        ],
        1,
    )
    state.fold(table)
    stream.extend(table, 100 * SECOND)
    refresh(settings, table)
    for number in range(2, 12):
        table.changes.append([], "watermarks", number)
    assert state.drop_tombstones(table, 110 * SECOND) == 1
    upkeep(settings, table)
    retention.trim_logs(table, 0)
    retention.vacuum(table, 0)
    table = open_table(settings, table.name)
    add(table, [write(2, 1, 20, v="c")], 20)
    stream.extend(table)
    refresh(settings, table)
    assert replayed(table) == view_rows(views.virtual(table))
    assert kinds(table, 3) == {(1, 1): "DELETE", (2, 1): "UPDATE"}


def test_upkeep_publishes_nothing(tmp_path: Path) -> None:
    """Expired rows wait for the step that checks them; a table without row events gets no more of them."""
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    add(table, [write(1, 1, 1) | {"v": {**cell("a", 1), "ttl": 5, "deletion_time": 105}}], 1)
    state.fold(table)
    with patch("writetime.view.refreshing.time_of_lake", return_value=100 * SECOND):
        refresh(settings, table)
    stream.extend(table, 100 * SECOND)
    for number in range(2, 5):
        table.changes.append([], "watermarks", number)
        before = table.view.load(), table.row_events.load().files
        upkeep(settings, table)
        assert (table.view.load().files, table.row_events.load().files) == (before[0].files, before[1])
        assert state.folded_version(table.state.load()) == table.changes.load().version
        for projection in (ROW_EVENTS, VIEW):
            position = projection.position(projection.of(table).load())
            assert position is not None
            assert (position.changes.version, position.batch.as_of) == (table.changes.load().version, 100 * SECOND)


@pytest.mark.parametrize("rows", [0, 1])
def test_upkeep_of_a_table_whose_log_was_deleted(tmp_path: Path, rows: int) -> None:
    """As after a week without maintenance. The next batch fails because it is too late; nothing else stops."""
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    add(table, [write(1, 1, 1, v="a")][:rows], 1)
    state.fold(table)
    stream.extend(table)
    refresh(settings, table)
    for number in range(2, 50):
        table.changes.append([], "watermarks", number)
    table.changes.trim_log(table.changes.load().version, 0, 0)
    table = open_table(settings, table.name)
    with pytest.raises(WritetimeError):
        table.changes.load(2)
    upkeep(settings, table)
    assert packing.pack_batches(table, table.changes.load()) == 0
    maintain(settings, table)
    assert view_rows(views.virtual(table)) == replayed(table)


STEPS = ["write", "drop", "return", "events", "view", "fold", "compact", "tombstones"]


@given(st.lists(st.sampled_from(STEPS), max_size=14))
@example(["fold", "write", "events", "fold", "drop", "compact", "events"])
@example(["fold", "write", "events", "fold", "drop", "compact"])
@example(["fold", "drop", "tombstones", "events"])
@hypothesis_settings(max_examples=60 if is_long_run() else 5)
def test_a_column_that_goes_and_comes_back(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """However that falls between the batches, events and view have no value from before the drop."""
    table = new_table(tmp_path_factory.mktemp("lake"), buckets=1)
    settings = settings_at(tmp_path_factory.mktemp("settings"))
    add(table, [write(1, 1, 1, v="a", w=1), {**write(2, 1, 1, w=1), "marker": None}], 0)
    schema = SCHEMA
    for number, step in enumerate(["events", "view", *steps, "return", "events", "view"], 1):
        match step:
            case "write":
                values = {"w": number} if schema.regular == SCHEMA.regular else {}
                add(table, [write(number % 3, 1, number, v=str(number), **values)], number, schema)
            case "drop":
                gone = DroppedColumn("w", Native("int"), False, number)
                kept = tuple(column for column in SCHEMA.regular if column.name != "w")
                schema = replace(SCHEMA, regular=kept, dropped=(gone,))
                table.follow(schema)
            case "return":
                schema = replace(schema, regular=SCHEMA.regular)
                table.follow(schema)
            case "events":
                stream.extend(table)
            case "view":
                refresh(settings, table)
            case "compact":
                with patch.object(state, "levels_to_fold", partial(state.levels_to_fold, fan=2)):
                    state.compact(table)
            case "tombstones":
                with patch.object(state, "may_drop", return_value=True):
                    state.drop_tombstones(table, number)
            case _:
                state.fold(table)
    wanted = list(views.virtual(table))
    assert replayed(table) == view_rows(wanted)
    shown = by_query(table.view.storage.address).select([c.label for c in table.schema().columns])
    assert unordered([shown]) == unordered(wanted)
