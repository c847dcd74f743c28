"""Late writes, from before the horizon: entries that the state has dropped may cover them.

Oracle: our own second path (the merge of all changes at once) for the entries, and a model of CQL
(`tests.support.written`) for the rows.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import generated
from tests.support.decoded_reads import decoded_reads
from tests.support.event_replay import replayed
from tests.support.examples import is_long_run
from tests.support.lake_answers import view_rows
from tests.support.lake_views import held, looked_up
from tests.support.made import add, new_table, write
from tests.support.timed import SECOND, around, deletion, rows_at
from writetime.delta import buckets
from writetime.delta.buckets import ALL, buckets_of
from writetime.delta.versions import DataFile
from writetime.files import change_files, merging
from writetime.files.merging import Source, merge_files
from writetime.lake import bucket_contents, state
from writetime.lake.bucket_contents import dropped_of, levels_of
from writetime.lake.horizon import only_dropped, without_dropped
from writetime.lake.table import LakeTable
from writetime.merge import live_rows, merge
from writetime.row_events import stream
from writetime.schema.cql import parse_table
from writetime.schema.table import TableSchema

pytestmark = pytest.mark.long

SCHEMAS = pytest.mark.parametrize("schema", [generated.SCHEMA, generated.COUNTERS], ids=lambda s: s.name)
# The batches of a history. Those of a short run still fill levels that are compacted, and late writes come to them.
_BATCHES = 10 if is_long_run() else 5


@SCHEMAS
@given(st.data(), st.integers(99, 106))
@settings(max_examples=200 if is_long_run() else 20)
def test_remaining_and_dropped_entries_are_the_state(schema: TableSchema, data: st.DataObject, second: int) -> None:
    changes = around(data.draw(st.lists(generated.change(schema), min_size=1, max_size=8)))
    whole = merge([generated.table(changes, schema)], schema)
    parts = [part(whole, schema, second * SECOND) for part in (without_dropped, only_dropped)]
    assert merge(parts, schema).equals(whole)
    assert not without_dropped(parts[1], schema, second * SECOND).num_rows


def test_a_late_write_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path, buckets=1)
    add(table, [write(1, 1, 5 * SECOND, v="old"), deletion(1, 1, 6 * SECOND), write(1, 2, 5 * SECOND, v="a")], 1)
    add(table, [deletion(1, 3, 9 * SECOND)], 2)
    state.fold(table)
    stream.extend(table)
    assert state.drop_tombstones(table, 8 * SECOND) == 1
    # The deletion that is older than the horizon and the cells that it deleted are dropped; the later one stays.
    assert [(r["n"], r["tombstone"] is not None) for r in held(table).to_pylist()] == [(2, False), (3, True)]
    assert state.drop_tombstones(table, 8 * SECOND) == 0
    late = [write(1, 1, 5 * SECOND, v="zombie"), write(1, 3, 5 * SECOND, v="zombie"), write(1, 4, 5 * SECOND, v="new")]
    add(table, late, 3)
    with monkeypatch.context() as patched:
        patched.setattr(bucket_contents, "dropped_of", lambda _: [])
        assert [(r["n"], r["v"]) for r in rows_at(table, 100)] == [(1, "zombie"), (2, "a"), (4, "new")]
    wanted = [(2, "a"), (4, "new")]
    assert [(r["n"], r["v"]) for r in rows_at(table, 100)] == wanted
    assert stream.extend(table) == 1
    state.fold(table)
    assert [(r["n"], r["v"]) for r in rows_at(table, 100)] == wanted
    # Only the changes that were written after the horizon are folded in.
    add(table, [write(1, 5, 9 * SECOND, v="b")], 4)
    assert [f.rows for f in state.pending(table, table.changes.load(), table.state.load())[0]] == [1]


def test_a_late_write_affects_no_other_bucket(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=2)
    tokens = pa.array([write(id_, 0, 1)["token"] for id_ in range(20)])
    [first, other, *_], [second, *_] = ([i for i in range(20) if buckets_of(tokens, 2)[i] == b] for b in range(2))
    add(table, [write(first, 0, 5 * SECOND, v="a"), write(second, 0, 5 * SECOND, v="old")], 1)
    add(table, [deletion(second, 0, 6 * SECOND)], 2)
    assert [file.bucket for file in table.changes.load().files] == [ALL, 1]
    state.fold(table)
    stream.extend(table, 100 * SECOND)
    assert state.drop_tombstones(table, 8 * SECOND) == 1
    # The file that the late write comes in is of all buckets, and so is the one with the write that was deleted.
    add(table, [write(other, 0, 5 * SECOND, v="late"), write(second, 1, 9 * SECOND, v="b")], 3)
    wanted = [(first, 0, "a"), (other, 0, "late"), (second, 1, "b")]

    def assert_right() -> None:
        for rows in (rows_at(table, 100), view_rows([looked_up(table, 100)]), replayed(table)):
            assert sorted((r["id"], r["n"], r["v"]) for r in rows) == sorted(wanted)

    stream.extend(table, 100 * SECOND)
    assert_right()
    # The late write is now among the changes from before the batch.
    add(table, [write(first, 1, 9 * SECOND, v="c"), write(second, 2, 9 * SECOND, v="d")], 4)
    wanted += [(first, 1, "c"), (second, 2, "d")]
    stream.extend(table, 100 * SECOND)
    assert_right()
    state.fold(table)
    assert_right()


def moved(value: Any, seconds: int) -> Any:
    """The same changes, made so much later."""
    if isinstance(value, list):
        return [moved(v, seconds) for v in value]
    if isinstance(value, dict):
        steps = {"write_time": seconds * SECOND, "deletion_time": seconds, "expiry": seconds}
        return {k: v + steps[k] if k in steps and v is not None else moved(v, seconds) for k, v in value.items()}
    return value


def all_of(table: LakeTable) -> pa.Table:
    """The merge of all levels, of the rows that they dropped, and of the changes that are not folded in."""
    held, changes = table.state.load(), table.changes.load()
    new = state.unfolded(table, changes, held)
    return merge_files(
        [Source(table.state.storage, tuple(held.files)), Source(table.changes.storage, tuple(new))], table.schema()
    )


@pytest.mark.parametrize(
    ("share", "schema"),
    [
        (0.01, generated.SCHEMA),
        (0.5, generated.COUNTERS),
        *(
            pytest.param(*pair, marks=pytest.mark.long_only("each share and each schema are in another pair"))
            for pair in ((0.5, generated.SCHEMA), (0.01, generated.COUNTERS))
        ),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
@given(st.data(), st.randoms(use_true_random=False))
# The first one is the simplest.
@settings(max_examples=12 if is_long_run() else 2)
def test_histories(
    schema: TableSchema,
    share: float,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    chooser: random.Random,
) -> None:
    table = new_table(tmp_path_factory.mktemp("lake"), schema, buckets=2)
    some = around(data.draw(st.lists(generated.change(schema), min_size=4, max_size=16)))
    now, whole, wanted = 1000, merge([], schema), []
    steps: list[Callable[[], Any]] = [
        lambda: state.fold(table),
        lambda: state.compact(table),
        lambda: state.drop_tombstones(table, (now - 4) * SECOND),
        lambda: stream.extend(table, now * SECOND),
    ]
    for number in range(_BATCHES):
        now += 2
        ages = [chooser.randint(5, 30) if chooser.random() < share else 0 for _ in range(30)]
        changes = [moved(chooser.choice(some), now - 106 - age) for age in ages]
        whole = merge([whole, generated.table(changes, schema)], schema)
        # Files of one bucket and files of all buckets are in one table.
        with patch.object(buckets, "FEW_ROWS", chooser.choice([0, 2, 4096])):
            add(table, changes, number, schema)
            for step in chooser.choices(steps, k=4):
                step()
        assert all_of(table).equals(whole)
        wanted = view_rows([live_rows(whole, schema, now)])
        assert rows_at(table, now) == wanted
        assert view_rows([looked_up(table, now)]) == wanted
    stream.extend(table, now * SECOND)
    assert replayed(table) == wanted


@dataclass
class Read:
    """The reads: whole files, and the rows of each file through the cache."""

    files: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)


@contextmanager
def reading() -> Iterator[Read]:
    """Record which files of a table are read, and how many rows through the cache."""
    found = Read()
    read_changes = change_files.read_changes

    def listed(files: Any, schema: pa.Schema) -> list[pa.Table]:
        chosen = list(files)
        found.files += [path for _, path, _ in chosen]
        return read_changes(chosen, schema)

    with decoded_reads("rows") as read, patch.object(merging, "read_changes", listed):
        yield found
    for file, batches in read:
        found.rows[file.path] = found.rows.get(file.path, 0) + sum(batch.num_rows for batch in batches)


def paths(files: list[DataFile]) -> set[str]:
    return {file.path for file in files}


def test_a_late_write_costs_its_row(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=4)
    with patch.object(buckets, "FEW_ROWS", 0):
        add(table, [write(i, n, 5 * SECOND, v="a") for i in range(500) for n in range(3)], 1)
        add(table, [deletion(i, n, 6 * SECOND) for i in range(500) for n in range(2)], 2)
        state.fold(table)
        stream.extend(table, 100 * SECOND)
        assert state.drop_tombstones(table, 8 * SECOND) == 4
    dropped = dropped_of(table.state.load())
    assert (sorted(f.bucket for f in dropped), sum(f.rows for f in dropped)) == ([0, 1, 2, 3], 1000)

    def batch_of(rows: list[dict[str, Any]], number: int) -> tuple[Read, Read, set[str]]:
        before = paths(table.changes.load().files)
        add(table, rows, number)
        new = paths(table.changes.load().files) - before
        with reading() as by_events:
            stream.extend(table, 100 * SECOND)
        with reading() as by_fold:
            state.fold(table)
        return by_events, by_fold, new

    fresh = [write(i, 0, 9 * SECOND, v="b") for i in range(10)]
    by_events, by_fold, new = batch_of(fresh, 3)
    assert set(by_events.files) == set(by_fold.files) == new
    assert not paths(dropped) & by_events.rows.keys()
    assert not by_fold.rows
    # The late write is one of a row that was deleted, in a partition with another one.
    late = write(77, 1, 5 * SECOND, v="zombie")
    by_events, by_fold, new = batch_of([*fresh, late], 4)
    assert set(by_events.files) == set(by_fold.files) == new
    (owner,) = buckets_of(pa.array([late["token"]]), 4).tolist()
    wanted = {file.path: 1 for file in dropped if file.bucket == owner}
    assert {path: count for path, count in by_events.rows.items() if path in paths(dropped)} == wanted
    assert by_fold.rows == wanted
    # Also ten rows of the previous batch.
    assert sum(by_events.rows.values()) == 1 + 10
    assert (77, 1) not in {(r["id"], r["n"]) for r in rows_at(table, 100)}
    # The new level does not have the dropped rows either.
    assert state.count_tombstones(table, table.state.load()) == 0
    assert dropped_of(table.state.load()) == dropped


def test_dropped_entries_are_compacted(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=1)
    add(table, [write(1, n, 5 * SECOND, v="a") for n in range(8)], 0)
    for n in range(1, 8):
        add(table, [deletion(1, n, (10 + n) * SECOND)], n)
        state.fold(table)
        assert state.drop_tombstones(table, (10 + n) * SECOND) == 1
        state.compact(table)
        assert len(dropped_of(table.state.load())) < state.FAN
    assert [file.rows for file in dropped_of(table.state.load())] == [7]


def test_a_state_that_is_rebuilt_has_dropped_nothing(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=1)
    add(table, [write(1, 1, 5 * SECOND, v="old"), deletion(1, 1, 6 * SECOND)], 1)
    state.fold(table)
    assert state.drop_tombstones(table, 8 * SECOND) == 1
    (file,) = table.state.load().files
    assert dropped_of(table.state.load()) == [file]
    state.rebuild(table)
    now = table.state.load()
    assert len(levels_of(now)) == 1
    assert dropped_of(now) == []
    add(table, [write(1, 1, 5 * SECOND, v="zombie")], 2)
    state.fold(table)
    assert rows_at(table, 100) == []


def test_a_late_write_of_a_new_column(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=1)
    add(table, [write(1, 1, 5 * SECOND, v="old"), deletion(1, 1, 6 * SECOND)], 1)
    state.fold(table)
    assert state.drop_tombstones(table, 8 * SECOND) == 1
    wider = parse_table("CREATE TABLE shop.items (id int, n int, v text, w int, x text, PRIMARY KEY (id, n))")
    table.follow(wider)
    add(table, [write(1, 1, 5 * SECOND, x="zombie"), write(1, 2, 5 * SECOND, x="new")], 2, wider)
    wanted = [{"id": 1, "n": 2, "v": None, "w": None, "x": "new"}]
    assert rows_at(table, 100) == wanted
    state.fold(table)
    assert rows_at(table, 100) == wanted
