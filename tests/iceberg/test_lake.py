"""Views and row events of the lake as Iceberg tables, after refreshes, packing, rebuilds and a vacuum.

Oracle: pyiceberg reads the Iceberg table; the rows are those of the computed view.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from pyiceberg.catalog import load_catalog

from tests.support.iceberg_tables import published
from tests.support.lake_answers import unordered
from tests.support.made import add, new_table, settings_at, write
from writetime.core.config import Settings, TableEntry
from writetime.core.errors import Transient
from writetime.follow.pipeline import TablePipeline
from writetime.follow.steps import Step
from writetime.iceberg.catalogs import CatalogEntry
from writetime.lake import retention, views
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import LakeTable, open_table, view_schema
from writetime.landing.following import TableLanding
from writetime.row_events.stream import extend
from writetime.view.refreshing import refresh
from writetime.view.upkeep import maintain, upkeep
from writetime.wire.watermarks import Sources


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_at(tmp_path, iceberg=True)


@pytest.fixture
def table(settings: Settings, tmp_path: Path) -> LakeTable:
    new_table(tmp_path)
    return open_table(settings, "shop.items")


def rows_of(table: LakeTable) -> list[str]:
    fields = view_schema(table.schema())
    found = published(table.view.storage.address).scan().to_arrow()
    return unordered([found.select(fields.names).cast(fields)])


def computed(table: LakeTable) -> list[str]:
    return unordered(views.virtual(table))


def test_a_view_is_an_iceberg_table_after_each_refresh(settings: Settings, table: LakeTable) -> None:
    for number in range(8):
        add(table, [write(i, 1, 5 + number, v=f"{number}", w=i) for i in range(number, number + 12)], number)
        refresh(settings, table, whole=number == 5)
        assert rows_of(table) == computed(table)
    assert (published(table.view.storage.address).metadata.snapshots[-1].sequence_number or 0) >= 8


def test_row_events_are_an_iceberg_table(settings: Settings, table: LakeTable) -> None:
    for number in range(3):
        add(table, [write(1, 1, 5 + number, v=f"{number}")], number)
        extend(table)
        found = published(table.row_events.storage.address)
        assert sorted(found.scan().to_arrow()["event_id"].to_pylist()) == sorted(
            table.row_events.read(["event_id"])["event_id"].to_pylist()
        )
    assert published(table.row_events.storage.address).format_version == 2


def test_an_idle_refresh_publishes_what_a_killed_one_committed(
    settings: Settings, table: LakeTable, tmp_path: Path
) -> None:
    add(table, [write(1, 1, 5, v="a")], 1)
    refresh(settings_at(tmp_path), open_table(settings_at(tmp_path), "shop.items"))
    assert not Path(table.view.storage.address, "metadata").exists()
    refresh(settings, table)
    assert rows_of(table) == computed(table)


def test_a_vacuum_keeps_the_metadata(settings: Settings, table: LakeTable) -> None:
    for number in range(3):
        add(table, [write(1, 1, 5 + number, v=f"{number}")], number)
        refresh(settings, table)
        extend(table)
    with patch.object(retention, "STREAM_HOURS", -1), patch("writetime.lake.view_retention.STREAM_HOURS", -1):
        retention.vacuum(table, 0)
    assert rows_of(table) == computed(table)
    assert len(published(table.row_events.storage.address).scan().to_arrow()) == 3


def test_a_vacuum_of_a_program_without_iceberg_keeps_the_metadata(
    settings: Settings, table: LakeTable, tmp_path: Path
) -> None:
    """The newest snapshot names manifests that are as old as what they list."""
    for number in range(3):
        add(table, [write(number, 1, 5, v=f"{number}")], number)
        refresh(settings, table)
        extend(table)
    with patch.object(retention, "STREAM_HOURS", -1), patch("writetime.lake.view_retention.STREAM_HOURS", -1):
        retention.vacuum(open_table(settings_at(tmp_path), "shop.items"), 0)
    assert rows_of(table) == computed(table)
    assert len(published(table.row_events.storage.address).scan().to_arrow()) == 3


@pytest.mark.parametrize("part", ["view", "row_events"])
def test_a_fault_stops_the_vacuum_of_its_part_only(settings: Settings, table: LakeTable, part: str) -> None:
    add(table, [write(1, 1, 5, v="a")], 1)
    refresh(settings, table)
    extend(table)
    left = [Path(each.storage.address, "left.parquet") for each in (*table.parts, table.row_events)]
    for path in left:
        path.write_bytes(b"of a failed task")
    faults = patch.object(table.iceberg[part], "publish", side_effect=OSError("no room"))
    with faults, patch("writetime.lake.view_retention.STREAM_HOURS", -1), pytest.raises(OSError, match="no room"):
        retention.vacuum(table, 0)
    assert [path for path in left if path.exists()] == [Path(getattr(table, part).storage.address, "left.parquet")]


def test_a_fault_does_not_stop_the_view(settings: Settings, table: LakeTable, caplog: pytest.LogCaptureFixture) -> None:
    add(table, [write(1, 1, 5, v="a")], 1)
    with patch.object(table.iceberg["view"], "publish", side_effect=OSError("no room")):
        assert refresh(settings, table).rows == 1
    assert "shop.items: the Iceberg table of view is not published: OSError: no room" in caplog.text
    refresh(settings, table)
    assert rows_of(table) == computed(table)


def followed_once(settings: Settings) -> TablePipeline:
    """The steps of a table after landing, of a program that does each once."""
    idle: Any = SimpleNamespace(
        name="shop.items", waiting=lambda _: 0, is_due=lambda _: False, report_steps=lambda _: None
    )
    entry = FollowedTable("shop.items", TableEntry(row_events=False))
    steps = TablePipeline(settings, cast(TableLanding, idle), entry)
    steps.run({}, Sources())
    return steps


def test_follow_reports_a_catalog_that_fails_and_keeps_the_view(table: LakeTable, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/folder/catalog.db"
    settings = settings_at(tmp_path, iceberg=True, iceberg_catalog={"type": "sql", "uri": uri})
    add(table, [write(1, 1, 5, v="a")], 1)
    failed = followed_once(settings)
    assert failed.view.fault is None
    assert "the Iceberg catalog does not register shop.items" in (failed.iceberg.fault or "")
    assert rows_of(table) == computed(table)
    (tmp_path / "folder").mkdir()
    assert followed_once(settings).iceberg.fault is None
    rows = load_catalog("writetime", type="sql", uri=uri).load_table("shop.items").scan().to_arrow()
    assert rows["v"].to_pylist() == ["a"]


def test_follow_asks_a_catalog_that_fails_once_per_rest(
    table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request to a catalog that does not answer holds up the table for its time limit."""
    requests, rests = [], []

    def register(entry: CatalogEntry, *_: object) -> None:
        requests.append(entry)
        raise Transient("the catalog does not answer")

    monkeypatch.setattr(CatalogEntry, "register", register)
    monkeypatch.setattr(Step, "rest", lambda _, seconds: rests.append(seconds))
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    add(table, [write(1, 1, 5, v="a")], 1)
    followed = followed_once(settings_at(tmp_path, iceberg=True, iceberg_catalog=catalog))
    assert (len(requests), rests) == (1, [60.0])
    assert (followed.view.fault, followed.iceberg.fault) == (None, "the catalog does not answer")
    assert rows_of(table) == computed(table)


def test_maintain_publishes(settings: Settings, table: LakeTable) -> None:
    add(table, [write(1, 1, 5, v="a")], 1)
    faults = patch.object(table.iceberg["view"], "publish", side_effect=OSError("no room"))
    with faults, pytest.raises(OSError, match="no room"):
        upkeep(settings, table)
    assert maintain(settings, table)["iceberg_tables"] == 2
    assert rows_of(table) == computed(table)


@pytest.mark.timeout(60)
def test_a_missing_extra_is_named(settings: Settings, table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    monkeypatch.setattr("writetime.core.extras.is_installed", lambda module: module != "pyiceberg")
    with pytest.raises(
        ModuleNotFoundError, match=r'this needs writetime\[iceberg\]: pip install "writetime\[iceberg\]"'
    ):
        open_table(settings, "shop.items")
