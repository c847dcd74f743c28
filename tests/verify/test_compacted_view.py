"""The compacted view of a table: it cannot be compared in some cases, and its table changes. No database is needed."""

import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid1

import pytest

from tests.support.made import SCHEMA, add, new_table, settings_at, write
from writetime.core.errors import Transient
from writetime.lake.generation import renew
from writetime.lake.table import LakeTable
from writetime.schema.cql import parse_table
from writetime.verify.compacted_view import compare_view
from writetime.view.refreshing import refresh


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    made = new_table(tmp_path / "lake")
    assert add(made, [write(i, 0, i + 1, v="a") for i in range(50)], 1)
    refresh(settings_at(tmp_path / "lake"), made)
    return made


@pytest.mark.parametrize("side", ["view", "changes"])
def test_a_missing_file_is_named(table: LakeTable, side: str) -> None:
    """It is a fault of the view, and not of the program that proves it."""
    found = compare_view(table)
    assert found is not None
    assert (found.rows, found.expected, found.fault) == (50, 50, None)
    part = getattr(table, side)
    path = part.load().files[0].path
    (Path(part.storage.address) / path).unlink()
    found = compare_view(table)
    assert found is not None
    assert found.fault is not None
    assert path.rpartition("/")[2] in found.fault
    assert f"`writetime rebuild {table.name} view`" in found.fault


@pytest.mark.parametrize("side", ["view", "changes"])
def test_an_outage_of_the_store_is_not_a_fault_of_the_view(
    table: LakeTable, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = getattr(table, side)
    path = Path(part.storage.address) / part.load().files[0].path
    path.unlink()
    # The name of a socket is short.
    monkeypatch.chdir(path.parent)
    with closing(socket.socket(socket.AF_UNIX)) as like_a_lost_device:
        like_a_lost_device.bind(path.name)
        with pytest.raises(Transient, match="No such device or address"):
            compare_view(table)


def test_a_table_that_was_created_again_has_no_view_yet(table: LakeTable) -> None:
    table.begin(replace(SCHEMA, id=uuid1()))
    assert compare_view(table) is not None
    renew(table, {})
    assert compare_view(table) is None
    refresh(settings_at(Path(table.storage.address).parent), table)
    found = compare_view(table)
    assert found is not None
    assert (found.rows, found.fault) == (0, None)


def test_columns_and_fields_that_are_added_after_a_refresh(tmp_path: Path) -> None:
    """Landing adds them to the view at once, and the rows of its last refresh do not have them."""
    create = (
        "CREATE TYPE shop.u (a int{}); CREATE TABLE shop.items (id int, n int, f frozen<u>, "
        "l frozen<list<frozen<tuple<int, frozen<u>>>>>, PRIMARY KEY (id, n))"
    )
    before = parse_table(create.format(""))
    made = new_table(tmp_path / "lake", before)
    values = {"f": {"a": 1}, "l": [{"_1": 1, "_2": {"a": 2}}, {"_1": 1, "_2": None}]}
    assert add(made, [write(i, 0, i + 1, **values) for i in range(50)], 1, before)
    refresh(settings_at(tmp_path / "lake"), made)
    made.follow(parse_table(create.format(", b text, c frozen<set<int>>").replace("n int, f", "n int, new text, f")))
    found = compare_view(made)
    assert found is not None
    assert (found.rows, found.expected, found.fault) == (50, 50, None)
