"""A view that is refreshed with the changed rows has the same rows as a computed view, in each engine.

Oracle: our own second path: the refreshed view against a computed one (`views.virtual`). `test_readers` compares with
a model of CQL.
"""

import dataclasses
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tests.support import generated
from tests.support.decoded_reads import decoded_reads
from tests.support.examples import examples
from tests.support.lake_answers import unordered
from tests.support.made import add, new_table, settings_at, write
from tests.support.view_readers import READERS, by_query, queried
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.delta import buckets
from writetime.delta.bucketed_table import Conflict
from writetime.delta.parquet import PARTITION
from writetime.lake import retention, state, view_retention, views
from writetime.lake.projection import AS_OF
from writetime.lake.table import LakeTable
from writetime.row_events import changed_rows
from writetime.schema.table import Column, DroppedColumn, TableSchema
from writetime.schema.types import Native
from writetime.view import packing, refreshing
from writetime.view.placed_rows import Refresh
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.long

SECOND = 1_000_000


def rows_of(table: LakeTable, read: Any = by_query) -> list[str]:
    found = read(table.view.storage.address)
    return unordered([found.select([column.label for column in table.schema().columns])])


def computed(table: LakeTable) -> list[str]:
    return unordered(views.virtual(table))


def steps(table: LakeTable, settings: Settings) -> dict[str, Any]:
    return {
        "fold": lambda: state.fold(table),
        "compact": lambda: state.compact(table),
        "refresh": lambda: refresh(settings, table),
        "whole": lambda: refresh(settings, table, whole=True),
    }


@given(st.lists(st.lists(generated.change(), max_size=5), max_size=5), st.randoms(use_true_random=False))
@examples(20)
def test_the_view_is_the_rows(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[generated.Change]], chooser: random.Random
) -> None:
    _follow(tmp_path_factory.mktemp("lake"), generated.SCHEMA, batches, chooser)


@given(
    st.lists(st.lists(generated.change(generated.COUNTERS), max_size=5), max_size=4), st.randoms(use_true_random=False)
)
@examples(6)
def test_the_view_is_the_counters(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[generated.Change]], chooser: random.Random
) -> None:
    _follow(tmp_path_factory.mktemp("lake"), generated.COUNTERS, batches, chooser)


def _follow(folder: Path, schema: TableSchema, batches: list[list[generated.Change]], chooser: random.Random) -> None:
    settings = settings_at(folder, buckets=2)
    table = new_table(folder, schema, buckets=2)
    second = 99
    for number, changes in enumerate(batches):
        second += chooser.randint(0, 2)
        # Sometimes a clock is ahead, so that all that expires has, until the next refresh by one that is not.
        now = (second + chooser.choice([0, 0, 1000])) * SECOND
        # Files of one bucket and files of all buckets, few and many, are in one view.
        with (
            patch.object(buckets, "FEW_ROWS", chooser.choice([0, 1, 4096])),
            patch.object(packing, "FAN", chooser.choice([2, 8])),
            patch.object(changed_rows, "FIRST_ROWS", chooser.choice([1, 2, 16])),
            patch.object(changed_rows, "GROWTH", 2),
            patch.object(views, "time_now", lambda now=now: now),
            patch.object(refreshing, "time_of_lake", lambda _, now=now: now),
        ):
            add(table, changes, number, schema)
            for step in chooser.sample(["fold", "compact", "refresh", "whole"], chooser.randint(0, 3)):
                steps(table, settings)[step]()
            if chooser.random() < 0.7:
                refresh(settings, table)
                assert rows_of(table) == computed(table)
    refresh(settings, table)
    wanted = computed(table)
    # Polars has no maps.
    for name in ("duckdb", "delta-rs"):
        assert rows_of(table, READERS[name]) == wanted


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_at(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    made = new_table(tmp_path)
    add(made, [write(i, 1, 5, v="a", w=i) for i in range(40)], 1)
    return made


def test_a_refresh_writes_and_marks_changed_rows(table: LakeTable, settings: Settings) -> None:
    first = refresh(settings, table)
    assert (first.rows, first.written, first.marked, first.whole) == (40, 40, 0, True)
    add(table, [write(3, 1, 6, v="b"), write(50, 1, 6, v="new")], 2)
    then = refresh(settings, table)
    assert (then.rows, then.written, then.marked, then.whole) == (41, 2, 1, False)
    assert rows_of(table) == computed(table)
    version = table.view.load().version
    assert refresh(settings, table) == refreshing.Refreshed(41, 0, 0, 0, False)
    assert table.view.load().version == version


def test_a_refresh_opens_only_files_that_may_have_changed_rows(table: LakeTable, settings: Settings) -> None:
    refresh(settings, table)
    assert {file.bucket for file in table.view.load().files} == {0, 1, 2, 3}
    for i in range(10):
        add(table, [write(i, 1, 6, v="new")], 2 + i)
        with decoded_reads("numbers") as opened:
            assert refresh(settings, table).marked == 1
        assert len({file.bucket for file, _ in opened if file.bucket != buckets.ALL}) == 1
    assert rows_of(table) == computed(table)


def test_a_file_without_rows_that_count_leaves(table: LakeTable, settings: Settings) -> None:
    refresh(settings, table)
    add(table, [write(60, 1, 6, v="b")], 2)
    refresh(settings, table)
    files = len(table.view.load().files)
    add(table, [write(60, 1, 7, v="c")], 3)
    refresh(settings, table)
    assert len(table.view.load().files) == files
    assert rows_of(table) == computed(table)


def test_one_of_two_refreshes_at_once_counts(table: LakeTable, settings: Settings) -> None:
    refresh(settings, table)
    add(table, [write(3, 1, 6, v="b")], 2)

    def meanwhile(files: Any, *, whole: bool) -> None:
        refresh(settings, open_again(table))

    with pytest.raises(Conflict, match="run this again"):
        refresh(settings, table, staged=meanwhile)
    assert rows_of(table) == computed(table)
    assert refresh(settings, table).written == 0


def open_again(table: LakeTable) -> LakeTable:
    return LakeTable(table.view.storage.__class__(str(Path(table.view.storage.address).parent)), table.cache)


def test_a_refusal_leaves_the_view(table: LakeTable, settings: Settings) -> None:
    refresh(settings, table)
    before = rows_of(table)
    add(table, [write(3, 1, 6, v="b")], 2)

    def refuse(files: Any, *, whole: bool) -> None:
        assert [file.rows for file in files] == [1]
        assert not whole
        raise WritetimeError("no")

    with pytest.raises(WritetimeError, match="no"):
        refresh(settings, table, staged=refuse)
    assert rows_of(table) == before
    assert refresh(settings, table).written == 1


@pytest.mark.parametrize("view", ["vectors", "rewritten"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_refusal_leaves_no_file(table: LakeTable, tmp_path: Path, view: str, is_new: bool) -> None:
    settings = settings_at(tmp_path, view=view)
    if not is_new:
        refresh(settings, table)
        add(table, [write(3, 1, 6, v="b"), write(60, 1, 6, v="new")], 2)
    folder = Path(table.view.storage.address)
    before = files_in(folder)

    def refuse(files: Any, *, whole: bool) -> None:
        assert len(files_in(folder)) == len(before) + len(files) > len(before)
        raise WritetimeError("no")

    for _ in range(3):
        with pytest.raises(WritetimeError, match="no"):
            refresh(settings, table, staged=refuse)
        assert files_in(folder) == before
    refresh(settings, table)
    assert rows_of(table) == computed(table)


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and "_delta_log" not in path.parts}


def test_files_of_another_engine_make_it_whole(table: LakeTable, settings: Settings) -> None:
    refresh(settings, table)
    add(table, [write(3, 1, 6, v="b")], 2)
    refresh(settings, table)
    # delta-rs compacts no table with vectors, so another program's file stands for such a compaction.
    files = table.view.load().files
    table.view.append([], "other", 1)
    with patch.object(refreshing, "is_placed", lambda file: file != files[0]):
        add(table, [write(4, 1, 6, v="b")], 3)
        assert refresh(settings, table).whole
    assert rows_of(table) == computed(table)


def test_rows_that_are_missing_make_it_whole(table: LakeTable, settings: Settings) -> None:
    refresh(settings, table)
    add(table, [write(3, 1, 6, v="b")], 2)
    with patch.object(refreshing, "_files_of", lambda *_: ()):
        assert refresh(settings, table).whole
    assert rows_of(table) == computed(table)


@pytest.mark.parametrize("fault", ["rows are missing", "a file is gone"])
def test_the_files_of_a_refresh_that_did_not_do_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Before the view is written whole: no later refresh knows of them, and only `maintain` would find them."""
    monkeypatch.setattr(buckets, "FEW_ROWS", 0)
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    add(table, [write(i, 1, 5, v="a") for i in range(40)], 1)
    refresh(settings, table)
    before = files_in(Path(table.view.storage.address))
    add(table, [write(i, 1, 6, v="b") for i in range(20)], 2)
    left: list[Path] = []

    def run(function: Any, tasks: Any) -> Iterator[Any]:
        for number, task in enumerate(tasks):
            if function is not Refresh.run:
                yield function(task)
                continue
            if fault == "a file is gone" and number == 2:
                raise FileNotFoundError("the rows as of the last refresh")
            done = function(task if fault == "a file is gone" else replace(task, files=()))
            left.extend(Path(table.view.storage.address, file.path) for file in done.files)
            yield done

    assert refresh(settings, table, run).whole
    assert len(left) >= 2
    named = {Path(table.view.storage.address, path) for path in table.view.load().by_path}
    assert files_in(Path(table.view.storage.address)) == before | named
    assert rows_of(table) == computed(table)


def test_a_vacuum_keeps_live_vectors(table: LakeTable, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    refresh(settings, table)
    for number in range(2, 30):
        add(table, [write(number, 1, 6, v="b")], number)
        refresh(settings, table)
    folder = Path(table.view.storage.address)
    lost = folder / f"{PARTITION}=1" / "placed-lost.parquet"
    lost.parent.mkdir(exist_ok=True)
    lost.write_bytes(b"of a task that failed")
    before = files_in(folder)
    assert retention.vacuum(table, 1) == []
    # As if an hour had passed.
    monkeypatch.setattr(view_retention, "time", SimpleNamespace(time=lambda: time.time() + 4000))
    gone = retention.vacuum(table, 1)
    after = files_in(folder)
    assert {str(path) for path in before - after} == {name for name in gone if "/view/" in name}
    assert not lost.exists()
    live = table.view.load().files
    assert len(after) == len(live) + len({each.vector.path for each in live if each.vector})
    for read in READERS.values():
        assert rows_of(table, read) == computed(table)


def test_from_vectors_to_rewritten_and_back(table: LakeTable, settings: Settings, tmp_path: Path) -> None:
    rewritten = settings_at(tmp_path, view="rewritten")
    refresh(settings, table)
    add(table, [write(3, 1, 6, v="b")], 2)
    refresh(settings, table)
    add(table, [write(4, 1, 6, v="b")], 3)
    assert refresh(rewritten, table).whole
    # A reader that does not know vectors reads it again.
    plain = DeltaTable(table.view.storage.address).to_pyarrow_table()
    assert unordered([plain.drop_columns([PARTITION])]) == computed(table)
    add(table, [write(5, 1, 6, v="b")], 4)
    assert refresh(settings, table).whole
    add(table, [write(6, 1, 6, v="b")], 5)
    assert not refresh(settings, table).whole
    assert rows_of(table) == computed(table)


def test_earlier_versions_stay_readable(table: LakeTable, settings: Settings) -> None:
    seen = {}
    for number in range(2, 12):
        add(table, [write(number, 1, 6, v="b")], number)
        refresh(settings, table)
        seen[table.view.load().version] = rows_of(table)
    for version, wanted in seen.items():
        delta = DeltaTable(table.view.storage.address, version)
        assert unordered([queried(delta).drop_columns([PARTITION])]) == wanted
        assert int(delta.history(1)[0][AS_OF]) > 0


def test_a_column_that_is_added_or_dropped(table: LakeTable, settings: Settings) -> None:
    refresh(settings, table)
    for change in ("ADD", "DROP"):
        schema = _altered(table.schema(), change)
        table.follow(schema)
        add(table, [write(7, 1, 8, v="c")], {"ADD": 2, "DROP": 3}[change], table.schema())
        assert refresh(settings, table).whole == (change == "DROP")
        names = [c.label for c in table.schema().columns]
        found = by_query(table.view.storage.address).select(names)
        assert unordered([found]) == computed(table)


def _altered(schema: TableSchema, change: str) -> TableSchema:
    if change == "ADD":
        return dataclasses.replace(schema, regular=(*schema.regular, Column("x", Native("int"))))
    kept = tuple(column for column in schema.regular if column.name != "w")
    return dataclasses.replace(
        schema, regular=kept, dropped=(DroppedColumn("w", Native("int"), static=False, dropped_at=100),)
    )
