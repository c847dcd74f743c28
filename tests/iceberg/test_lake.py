"""Views and row events of the lake as Iceberg tables, after refreshes, packing, rebuilds and a vacuum.

Oracle: pyiceberg reads the Iceberg table; the rows are those of the computed view.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest
from pyiceberg.catalog import load_catalog

from tests.support.iceberg_tables import published
from tests.support.lake_answers import unordered
from tests.support.made import add, new_table, settings_at, write
from writetime.clients.kafka import TopicEnds
from writetime.core.config import Settings, TableEntry
from writetime.core.errors import Transient
from writetime.follow.pipeline import TablePipeline
from writetime.follow.program import Follower
from writetime.follow.registration import TableRegistration
from writetime.follow.steps import Step
from writetime.iceberg.catalogs import CatalogEntry
from writetime.lake import retention, views
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import LakeTable, open_table, view_schema
from writetime.landing.following import LandedTables
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


IDLE: Any = SimpleNamespace(name="shop.items", waiting=lambda _: 0, is_due=lambda _: False, report_steps=lambda _: None)
"""The landing of a table without messages."""


def followed(settings: Settings) -> TablePipeline:
    """The steps of a table after landing."""
    return TablePipeline(settings, IDLE, FollowedTable("shop.items", TableEntry(row_events=False)))


def registered_once(settings: Settings) -> tuple[TablePipeline, TableRegistration]:
    """The steps and the registration of a table, of a program that does each once."""
    steps = followed(settings)
    steps.run({}, Sources())
    assert steps.registration
    steps.registration.run()
    return steps, steps.registration


def test_follow_reports_a_catalog_that_fails_and_keeps_the_view(table: LakeTable, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/folder/catalog.db"
    settings = settings_at(tmp_path, iceberg=True, iceberg_catalog={"type": "sql", "uri": uri})
    add(table, [write(1, 1, 5, v="a")], 1)
    steps, registration = registered_once(settings)
    assert (steps.view.fault, steps.iceberg.fault) == (None, None)
    assert "the Iceberg catalog does not register shop.items" in (registration.step.fault or "")
    assert registration.step in steps.steps
    assert rows_of(table) == computed(table)
    (tmp_path / "folder").mkdir()
    assert registered_once(settings)[1].step.fault is None
    rows = load_catalog("writetime", type="sql", uri=uri).load_table("shop.items").scan().to_arrow()
    assert rows["v"].to_pylist() == ["a"]


def test_follow_asks_a_catalog_that_fails_once_per_rest(
    table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, rests = [], []

    def register(entry: CatalogEntry, *_: object) -> None:
        requests.append(entry)
        raise Transient("the catalog does not answer")

    monkeypatch.setattr(CatalogEntry, "register", register)
    monkeypatch.setattr(Step, "rest", lambda _, seconds: rests.append(seconds))
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    add(table, [write(1, 1, 5, v="a")], 1)
    registration = registered_once(settings_at(tmp_path, iceberg=True, iceberg_catalog=catalog))[1]
    assert (len(requests), rests) == (1, [60.0])
    assert registration.step.fault == "the catalog does not answer"


@pytest.mark.timeout(60)
def test_a_catalog_that_hangs_holds_nothing(table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers, numbers = threading.Event(), threading.Event(), []

    def register(_: CatalogEntry, __: Any, address: str, ___: Any) -> None:
        numbers.append(address)
        asked.set()
        answers.wait()

    monkeypatch.setattr(CatalogEntry, "register", register)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    settings = settings_at(tmp_path, iceberg=True, iceberg_catalog=catalog)
    often = settings.follow.model_copy(update={"view_seconds": 0.0})
    steps = followed(settings.model_copy(update={"follow": often}))
    assert steps.registration
    with ThreadPoolExecutor(1) as threads, ExitStack() as at_end:
        at_end.callback(answers.set)
        for number in range(3):
            add(table, [write(number, 1, 5, v="a")], number)
            steps.view.begin()
            steps.run({}, Sources())
            assert rows_of(table) == computed(table)
            if number == 0:
                threads.submit(steps.registration.run)
                asked.wait()
    # The versions that came meanwhile are next.
    assert steps.registration.step.is_behind
    steps.registration.run()
    assert not steps.registration.step.is_behind
    assert [Path(each).name for each in numbers] == ["v1.metadata.json", "v3.metadata.json"]


@pytest.mark.parametrize("has_catalog", [False, True])
def test_registrations_have_turns_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_catalog: bool
) -> None:
    catalog = {"type": "sql", "uri": "sqlite://"} if has_catalog else {}
    monkeypatch.setattr(LandedTables, "ask", lambda _: (Sources(), TopicEnds({}, {}, None)))
    monkeypatch.setattr(LandedTables, "wanted", lambda *_: [IDLE])
    own, turns = Mock(), (Mock(), Mock(), Mock())
    Follower(settings_at(tmp_path, iceberg=True, iceberg_catalog=catalog)).look(turns[0], turns[1], turns[2], own)
    offered = [set(each.offer.call_args.args[0]) for each in turns]
    assert offered == [{"shop.items"}, set(), {"shop.items"} if has_catalog else set()]


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
