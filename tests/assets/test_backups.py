"""Backups at the places that an entry names: their sensor, and their backfill."""

import shutil
import socket
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import uuid1, uuid4

import pyarrow as pa
import pytest
from dagster import (
    AssetKey,
    AssetSpec,
    DagsterInstance,
    Definitions,
    SensorResult,
    SkipReason,
    build_sensor_context,
    evaluate_automation_conditions,
    materialize,
)
from pyspark.sql import SparkSession

from tests.support.backups import ScyllaManager
from tests.support.made import settings_at
from tests.support.recordings import RecordedTable
from tests.support.settings import write_settings
from tests.support.waiting import wait_for
from writetime.core.config import TableEntry
from writetime.lake import views
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import open_table
from writetime.schema.describe import to_cql
from writetime_dagster.assets import backfill
from writetime_dagster.assets.naming import key_of
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource

RECORDED = RecordedTable("rec104", "x_0")
NAME = RECORDED.schema.full_name
NODE = uuid4()
RESOURCES: dict[str, Any] = {"spark": SparkResource(), "lake": LakeResource(), "database": DatabaseResource()}


@pytest.fixture
def manager(tmp_path: Path) -> ScyllaManager:
    return ScyllaManager(tmp_path / "place", NAME, uuid1(), to_cql(RECORDED.schema), uuid4(), uuid4())


def back_up(manager: ScyllaManager, night: int) -> None:
    files = [
        file
        for each in RECORDED.locations[: night + 1]
        for file in Path(each.folder).glob(f"{each.version}-{each.id}-*")
    ]
    manager.backup(NODE, datetime(2026, 5, 1 + night, tzinfo=UTC), files)


def test_new_backups_start_a_backfill(manager: ScyllaManager) -> None:
    """By a materialization of the snapshots, for each backup one. A place that cannot be listed holds no other up."""
    followed = FollowedTable(NAME, TableEntry(capture=False, snapshots=[str(manager.place)]))
    broken = FollowedTable("shop.none", TableEntry(snapshots=["unknown://user:secret@place"]))
    sensor = backfill.new_backups([broken, followed])
    assets = [backfill.snapshots(followed), backfill.build_backfill_asset(followed)]
    assert "by its nodes: unknown://user@place. " in str(cast(AssetSpec, backfill.snapshots(broken)).description)
    definitions = Definitions(assets, resources=RESOURCES)
    cursor, automation = None, None
    with DagsterInstance.ephemeral() as instance:

        def tick() -> list[AssetKey]:
            nonlocal cursor
            result = sensor(build_sensor_context(instance, cursor=cursor))
            assert isinstance(result, SensorResult)
            cursor = result.cursor
            for event in result.asset_events:
                instance.report_runless_asset_event(event)
            assert isinstance(result.skip_reason, SkipReason)
            found = f"recorded: {NAME}" if result.asset_events else "no place has a new backup"
            assert f"{found}; shop.none: " in str(result.skip_reason.skip_message)
            return [event.asset_key for event in result.asset_events]

        def requested() -> int:
            nonlocal automation
            found = evaluate_automation_conditions(definitions, instance, cursor=automation)
            automation = found.cursor
            return found.get_num_requested(key_of(NAME, "backfill"))

        assert tick() == []
        requested()
        for night in range(2):
            back_up(manager, night)
            assert tick() == [key_of(NAME, "snapshots")]
            assert requested() == backfill.TOKEN_RANGES
            assert tick() == []
            assert requested() == 0


def test_a_place_that_does_not_answer_does_not_delay_the_others(
    manager: ScyllaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(manager, 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as store:
        # It takes connections, and is silent.
        place = f"s3://bucket/of?region=x&scheme=http&endpoint_override=127.0.0.1:{store.getsockname()[1]}"
        silent = FollowedTable("shop.silent", TableEntry(snapshots=[place]))
        followed = FollowedTable(NAME, TableEntry(capture=False, snapshots=[str(manager.place)]))
        sensor = backfill.new_backups([silent, followed], seconds=3)
        with DagsterInstance.ephemeral() as instance:
            result = sensor(build_sensor_context(instance))
            assert isinstance(result, SensorResult)
            assert [event.asset_key for event in result.asset_events] == [key_of(NAME, "snapshots")]
            result = sensor(build_sensor_context(instance, cursor=result.cursor))
    assert isinstance(result, SensorResult)
    assert isinstance(result.skip_reason, SkipReason)
    assert "shop.silent: its places did not answer for 3 s" in str(result.skip_reason.skip_message)


def test_the_listing_of_a_slow_place_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its tables has its turn, and one thread lists it at a time."""
    tables = [FollowedTable(f"shop.t{i}", TableEntry(snapshots=["/place"])) for i in range(6)]
    turns = [threading.Event() for _ in tables]
    asked: list[str] = []

    def names(_places: object, table: str, _seen: object) -> list[str]:
        asked.append(table)
        assert turns[len(asked) - 1].wait(60)
        return [f"backup of {table}"]

    monkeypatch.setattr(backfill, "backup_names", names)
    sensor, cursor, recorded = backfill.new_backups(tables, seconds=0.1), None, list[AssetKey]()
    with DagsterInstance.ephemeral() as instance:
        for number, turn in enumerate(turns):
            result = sensor(build_sensor_context(instance, cursor=cursor))
            assert isinstance(result, SensorResult)
            recorded += [event.asset_key for event in result.asset_events]
            cursor = result.cursor
            wait_for(lambda number=number: len(asked) > number)
            assert asked == [table.name for table in tables[: number + 1]]
            turn.set()
            # Before the next look, it begins with the next table.
            wait_for(lambda number=number: len(asked) > number + 1 or number == len(tables) - 1)
    assert recorded == [key_of(table.name, "snapshots") for table in tables[:-1]]


def test_a_backfill_reads_only_new_sstables(
    manager: ScyllaManager, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_at(tmp_path / "lake", buckets=2)
    write_settings(settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    followed = FollowedTable(NAME, TableEntry(capture=False, snapshots=[str(manager.place)]))
    ranges = backfill.token_ranges.get_partition_keys()
    tags = {"dagster/asset_partition_range_start": ranges[0], "dagster/asset_partition_range_end": ranges[-1]}
    for night in range(2):
        back_up(manager, night)
        with DagsterInstance.ephemeral() as instance:
            made = materialize(
                [backfill.build_backfill_asset(followed)], instance=instance, resources=RESOURCES, tags=tags
            )
        # One event per range, with the numbers of the run.
        found = made.get_asset_materialization_events()[0].materialization.metadata
        assert (found["sstables"].value, found["sstables_new"].value) == (night + 1, 1)
        assert cast(int, found["changes_added"].value) > 0
    shutil.rmtree(manager.place)
    monkeypatch.setattr(views, "time_now", lambda: RECORDED.snapshot_at * 1_000_000)
    rows = pa.concat_tables(views.virtual(open_table(settings, NAME)))
    assert RECORDED.texts(rows) == RECORDED.answer()
