"""Upkeep of an idle table: the view moves to the present version of the changes, and its rows stay."""

from pathlib import Path

from deltalake import DeltaTable

from tests.support.lake_answers import unordered
from tests.support.made import add, new_table, settings_at, write
from tests.support.view_readers import by_query
from writetime.lake import state, views
from writetime.lake.projection import VIEW
from writetime.view.refreshing import refresh
from writetime.view.upkeep import upkeep


def test_a_view_that_another_engine_restored_is_written_whole(tmp_path: Path) -> None:
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    add(table, [write(i, 1, 5, v="a") for i in range(20)], 1)
    state.fold(table)
    refresh(settings, table)
    restored = table.view.load().version
    add(table, [write(i, 1, 6, v="b") for i in (1, 2, 100)], 2)
    refresh(settings, table)
    DeltaTable(table.view.storage.address).restore(restored)
    table.changes.append([], "watermarks", 2)
    upkeep(settings, table)
    assert not VIEW.is_ours(table.view.load())
    add(table, [write(50, 1, 7, v="c")], 3)
    assert refresh(settings, table).whole
    names = [column.label for column in table.schema().columns]
    assert unordered([by_query(table.view.storage.address).select(names)]) == unordered(views.virtual(table))


def test_a_view_without_vectors_stays_without(tmp_path: Path) -> None:
    table, settings = new_table(tmp_path), settings_at(tmp_path, view="rewritten")
    add(table, [write(i, 1, 5, v="a") for i in range(20)], 1)
    refresh(settings, table)
    view = DeltaTable(table.view.storage.address)
    before = view.protocol(), view.metadata().configuration
    table.changes.append([], "watermarks", 1)
    upkeep(settings, table)
    assert table.view.load().transaction("view/changes") == table.changes.load().version
    view.update_incremental()
    assert (view.protocol(), view.metadata().configuration) == before
    assert view.to_pyarrow_table().num_rows == 20
