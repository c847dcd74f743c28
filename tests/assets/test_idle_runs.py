"""Whether runs start a Spark session: only if something is new."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from dagster import AssetsDefinition, DagsterInstance, materialize
from deltalake import CommitProperties
from deltalake.transaction import Transaction
from pyspark.sql import SparkSession

from tests.support.made import add, new_table, settings_at, write
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.ingest import dead_letter_rows
from writetime.lake import state, views
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import LakeTable
from writetime.row_events import stream
from writetime.view.refreshing import refresh
from writetime.workqueue.items import ItemPartition
from writetime_dagster.assets import changes, ingest, row_events, workqueue
from writetime_dagster.assets import views as view_assets
from writetime_dagster.resources import DatabaseResource, KafkaResource, LakeResource, SparkResource

pytestmark = pytest.mark.slow

_RESOURCES = {
    "spark": SparkResource(),
    "lake": LakeResource(),
    "kafka": KafkaResource(),
    "database": DatabaseResource(),
}


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The sessions that were to start. None does."""
    found: list[object] = []

    def refuse(conf: object) -> None:
        found.append(conf)
        raise WritetimeError("no session here")

    monkeypatch.setattr("writetime_dagster.resources.spark.start_session", refuse)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    return found


def expiring(id_: int) -> dict[str, Any]:
    """A row that expires at the second 500."""
    row = write(id_, 1, 5, v="a")
    row["marker"] |= {"ttl": 100, "expiry": 500}
    row["v"] |= {"ttl": 100, "deletion_time": 500}
    return row


def run(*assets: AssetsDefinition) -> list[bool]:
    """The checks of a run of assets; none if it fails."""
    used = {key: _RESOURCES[key] for each in assets for key in each.required_resource_keys if key in _RESOURCES}
    with DagsterInstance.ephemeral() as instance:
        result = materialize(assets, instance=instance, resources=used, raise_on_error=False)
    return [check.passed for check in result.get_asset_check_evaluations()] if result.success else []


def catch_up(table: LakeTable) -> bool:
    """Run the assets of `catch_up` that follow the landing; return whether they succeed."""
    followed = FollowedTable(table.name)
    checks = run(
        changes.build_state_asset(followed),
        view_assets.build_view_asset(followed),
        row_events.build_row_events_asset(followed),
    )
    assert not checks or checks == [True] * 6
    return bool(checks)


def followed_by_hand(table: LakeTable, settings: Settings) -> None:
    """Do the work of `catch_up` without Spark."""
    state.fold(table)
    state.compact(table)
    refresh(settings, table)
    stream.extend(table)


@pytest.mark.parametrize("history", [1, 5])
def test_a_table_without_changes_needs_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[object], history: int
) -> None:
    monkeypatch.setenv("WRITETIME_LAKE__PATH", str(tmp_path))
    monkeypatch.setattr(views, "time_now", lambda: 400 * 1_000_000)
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    for number in range(history):
        add(table, [expiring(1), write(2 + number, 1, 5, v="a")], number)
        followed_by_hand(table, settings)
    assert catch_up(table)
    # Watermarks are no changes.
    table.changes.append([], "watermarks", 1)
    assert catch_up(table)
    assert not starts
    # Expired data is new, and so is a change.
    monkeypatch.setattr(views, "time_now", lambda: 501 * 1_000_000)
    assert not catch_up(table)
    assert starts
    followed_by_hand(table, settings)
    starts.clear()
    assert catch_up(table)
    add(table, [write(50, 1, 6, v="b")], history)
    assert not starts
    assert not catch_up(table)
    assert starts


def without_rows(folder: Path, rows: pa.Table, numbers: dict[str, int], by: Sequence[str] = ()) -> None:
    """Write a table of the lake with numbers, and delete its rows. So it has only its log."""
    properties = CommitProperties(app_transactions=[Transaction(*each) for each in numbers.items()])
    deltalake.write_deltalake(folder, rows, partition_by=list(by) or None, commit_properties=properties)
    for file in folder.rglob("*.parquet"):
        file.unlink()


def test_no_new_dead_letter_needs_no_session_and_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[object]
) -> None:
    monkeypatch.setenv("WRITETIME_LAKE__PATH", str(tmp_path))
    ends = {0: 7, 1: 0, 2: 5}
    monkeypatch.setattr(dead_letter_rows, "topic_ids", lambda _, names: dict.fromkeys(names, 99))
    monkeypatch.setattr(dead_letter_rows, "beginning_offsets", lambda *_: dict.fromkeys(ends, 0))
    monkeypatch.setattr(dead_letter_rows, "end_offsets", lambda *_: ends)
    numbers = {dead_letter_rows.app_id(99, 0): 7, dead_letter_rows.app_id(99, 2): 5}
    without_rows(tmp_path / ingest.DEAD_LETTERS_TABLE, pa.table({"offset": [3, 4]}), numbers)
    assert run(ingest.dead_letters) == [True]
    assert not starts
    ends[0] = 8
    assert not run(ingest.dead_letters)
    assert starts


class Queues:
    """The buckets of a queue in the database, whose time is 1,000."""

    def __init__(self, place: ItemPartition, closed: int | None) -> None:
        self.place, self.closed = place, closed

    @contextmanager
    def inspecting(self, _settings: Settings) -> Iterator["Queues"]:
        yield self

    def queues(self) -> list[str]:
        return ["mails"]

    def now(self) -> int:
        return 1_000

    def buckets(self, queue: str, until: int) -> dict[ItemPartition, int | None]:
        return {self.place: self.closed} if self.place.bucket <= until else {}


@pytest.mark.parametrize(
    ("shard", "bucket", "closed", "works"),
    [(1, 0, 500, False), (1, 0, 700, True), (1, 0, None, True), (2, 0, 500, True), (1, 1_001, None, False)],
    ids=["in the lake", "closed since", "open", "not in the lake", "not begun"],
)
def test_only_buckets_that_may_have_new_items_need_a_session(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    starts: list[object],
    shard: int,
    bucket: int,
    closed: int | None,
    works: bool,
) -> None:
    monkeypatch.setenv("WRITETIME_LAKE__PATH", str(tmp_path))
    monkeypatch.setattr(workqueue, "inspecting", Queues(ItemPartition("mails", shard, bucket), closed).inspecting)
    rows = pa.table({"queue": ["mails"], "bucket": [0], "shard": pa.array([1], pa.int32()), "read_at": [600]})
    without_rows(tmp_path / workqueue.COMPLETED_TABLE, rows, {}, ["queue", "bucket", "shard"])
    assert run(workqueue.completed_events) == ([] if works else [True])
    assert bool(starts) == works
