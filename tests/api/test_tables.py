"""A captured table, read as in a notebook."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

import writetime
from tests.support.made import SCHEMA, add, new_table, settings_at, write
from writetime.core.errors import WritetimeError
from writetime.row_events import stream


@pytest.fixture
def items(tmp_path: Path) -> writetime.Table:
    table = new_table(tmp_path)
    add(table, [write(1, 1, 1_000_000, v="a", w=1), write(1, 2, 1_000_000, v="b", w=2)], 1)
    stream.extend(table)
    add(table, [write(1, 2, 2_000_000, v="c"), write(2, 1, 2_000_000, v="d", w=4)], 2)
    stream.extend(table)
    return writetime.open_table("shop.items", settings_at(tmp_path))


def test_a_view_of_now_and_of_an_earlier_time(items: writetime.Table) -> None:
    assert items.name == "shop.items"
    assert items.schema.full_name == SCHEMA.full_name
    now = sorted(items.view().to_pylist(), key=lambda row: (row["id"], row["n"]))
    assert now == [
        {"id": 1, "n": 1, "v": "a", "w": 1},
        {"id": 1, "n": 2, "v": "c", "w": 2},
        {"id": 2, "n": 1, "v": "d", "w": 4},
    ]
    for then in (1_500_000, "1970-01-01T00:00:01.5Z", datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)):
        assert sorted(items.view(then)["v"].to_pylist()) == ["a", "b"]


def test_rows_are_found_by_key(items: writetime.Table) -> None:
    assert sorted(items.lookup([{"id": 1}])["v"].to_pylist()) == ["a", "c"]
    assert items.lookup([{"id": 1, "n": 2}, {"id": 2, "n": 1}, {"id": 3, "n": 1}]).num_rows == 2
    assert items.lookup([]).num_rows == 0
    assert items.lookup([{"id": 9}]).schema == items.view().schema


def test_row_events_since_a_batch(items: writetime.Table) -> None:
    assert sorted(items.row_events()["kind"].to_pylist()) == ["CREATE", "CREATE", "CREATE", "UPDATE"]
    assert sorted(items.row_events(since=2)["kind"].to_pylist()) == ["CREATE", "UPDATE"]
    assert items.row_events(since=3).num_rows == 0


def test_a_table_that_is_not_in_the_lake(tmp_path: Path) -> None:
    with pytest.raises(WritetimeError, match=r"shop\.nothing"):
        writetime.open_table("shop.nothing", settings_at(tmp_path))


def test_an_empty_table_has_its_columns(tmp_path: Path) -> None:
    new_table(tmp_path)
    found = writetime.open_table("shop.items", settings_at(tmp_path))
    assert found.view().column_names == ["id", "n", "v", "w"]
    with pytest.raises(WritetimeError, match="no row events"):
        found.row_events()
