"""A table that stays open follows its log: commits of others, and a table that was removed and created again."""

import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.made import SCHEMA, add, batch, new_table, settings_at, write
from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import FORMAT, BucketedTable
from writetime.delta.versions import TableVersion
from writetime.lake import retention, state, views
from writetime.lake.changes import ChangeWriter
from writetime.lake.table import LakeTable, open_table

pytestmark = pytest.mark.slow


def paths(version: TableVersion) -> list[str]:
    """The files of a version."""
    return [file.path for file in version.files]


def fresh(table: LakeTable) -> DeltaTable:
    """The table as another reader opens it."""
    return DeltaTable(table.changes.storage.address)


def test_an_open_table_follows_other_commits(tmp_path: Path, is_long: bool) -> None:
    # There is a checkpoint at each 20th version.
    count = 50 if is_long else 25
    table = new_table(tmp_path)
    kept = deepcopy(table)
    versions = []
    for number in range(count):
        assert add(kept if number % 3 else table, [write(number, 1, 5, v="a")], number)
        now = kept.changes.load()
        versions.append(now)
        assert (now.version, now.transaction("test")) == (fresh(table).version(), number)
        assert kept.changes.load() is now
    table.changes.set_property("a", "b")
    assert kept.changes.load().properties["a"] == "b"
    kept.changes.set_property("a", "c")
    assert kept.changes.load().properties["a"] == table.changes.load().properties["a"] == "c"
    # An earlier version does not change.
    for number, version in enumerate(versions):
        assert len(version.files) == number + 1
        assert version.transaction("test") == number
    state.fold(table)
    assert retention.trim_history(table, views.time_now()) == count
    assert sorted(paths(kept.changes.load())) == sorted(paths(table.changes.load()))


@pytest.mark.parametrize("commits", [0, 3, 50])
def test_no_log_is_listed_to_see_that_a_table_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """delta-rs lists the whole log."""
    listed = Counter[str]()
    is_deltatable = DeltaTable.is_deltatable
    monkeypatch.setattr(
        DeltaTable, "is_deltatable", lambda at, *more: (listed.update([at]), is_deltatable(at, *more))[1]
    )
    table = new_table(tmp_path)
    for number in range(commits):
        add(table, [write(number, 1, 5, v="a")], number)
    trimmed = table.changes.trim_log(table.changes.load().version, 0, 0)
    assert (trimmed > 40) == (commits == 50)
    listed.clear()
    assert deepcopy(table).changes.exists()
    assert deepcopy(table).changes.find() is not None
    assert open_table(settings_at(tmp_path), table.name).changes.exists()
    assert not listed
    assert not table.row_events.exists()
    # Another program deleted the hint.
    hint = tmp_path / table.name / "changes" / "_delta_log" / "_last_checkpoint"
    hint.unlink(missing_ok=True)
    assert deepcopy(table).changes.exists()


def test_each_part_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    add(table, [write(1, 1, 5, v="a")], 1)
    opened = Counter[str]()
    open_at = BucketedTable._open_at

    def counted(part: BucketedTable, version: int | None) -> DeltaTable:
        opened[part.storage.address] += 1
        return open_at(part, version)

    monkeypatch.setattr(BucketedTable, "_open_at", counted)
    found = open_table(settings_at(tmp_path), table.name)
    assert (found.buckets, found.cache) == (table.buckets, table.cache)
    for part in found.parts:
        part.load()
    len(found.view.load().files)
    assert opened == {part.storage.address: 1 for part in table.parts}


def test_files_are_counted_without_a_list_of_them(tmp_path: Path) -> None:
    """Each turn counts those of each table, for a metric."""
    table = new_table(tmp_path)
    for number in range(3):
        add(table, [write(number, 1, 5, v="a")], number)
    assert table.changes.known_files == 3
    assert "files" not in vars(table.changes.load())


def test_a_number_that_is_first_requested_after_the_log_was_trimmed(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.changes.append([], "early", 7)
    kept = deepcopy(table)
    for number in range(50):
        add(table, [write(number, 1, 5, v="a")], number)
        kept.changes.load()
    assert table.changes.trim_log(table.changes.load().version, 0, 0) > 40
    now = kept.changes.load()
    assert (now.transaction("early"), now.transaction("never"), now.transaction("test")) == (7, None, 49)
    state.fold(kept)
    assert retention.trim_history(kept, views.time_now()) == 50


@pytest.mark.parametrize("commits", [1, 3, 9])
def test_an_open_table_that_was_removed_and_created_again(tmp_path: Path, commits: int) -> None:
    table = new_table(tmp_path)
    kept = deepcopy(table)
    for number in range(3):
        add(kept, [write(number, 1, 5, v="a")], number)
    before = kept.changes.load()
    shutil.rmtree(tmp_path / "shop.items")
    assert kept.changes.find() is None
    with pytest.raises(WritetimeError, match="cannot be opened"):
        kept.changes.load()
    new_table(tmp_path)
    for number in range(commits):
        add(table, [write(number, 1, 5, v="b")], number)
    now = kept.changes.load()
    assert (now.version, sorted(paths(now))) == (commits, sorted(paths(table.changes.load())))
    assert not set(paths(before)) & set(paths(now))
    assert add(kept, [write(9, 1, 5, v="c")], commits)
    assert len(table.changes.load().files) == commits + 1


def test_another_table_appears_while_it_is_open(tmp_path: Path) -> None:
    table = new_table(tmp_path / "one")
    kept = deepcopy(table)
    add(kept, [write(1, 1, 5, v="a")], 1)
    other = new_table(tmp_path / "two")
    for number in range(4):
        add(other, [write(number, 1, 5, v="b")], number)
    kept.changes.load()
    shutil.rmtree(tmp_path / "one")
    shutil.move(tmp_path / "two", tmp_path / "one")
    assert sorted(paths(kept.changes.load())) == sorted(paths(table.changes.load()))
    assert len(kept.changes.load().files) == 4


def test_the_format_of_an_open_table_is_checked(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    kept = deepcopy(table)
    kept.changes.load()
    fresh(table).alter.set_table_properties({FORMAT: "99"}, raise_if_not_exists=False)
    for _ in range(2):
        with pytest.raises(WritetimeError, match="format version 99"):
            kept.changes.load()


def test_one_of_many_at_once(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    writers = [deepcopy(table) for _ in range(4)]

    def work(writer: LakeTable) -> int:
        return sum(
            writer.changes.append(
                ChangeWriter.of(writer, SCHEMA).write([batch([write(number, 1, 5, v="a")])]), "test", number
            )
            for number in range(1, 13)
        )

    with ThreadPoolExecutor(4) as pool:
        done = sum(pool.map(work, writers))
    now = table.changes.load()
    assert now.transaction("test") == 12
    assert len(now.files) == done <= 12
    for writer in writers:
        assert paths(writer.changes.load()) == paths(now)
