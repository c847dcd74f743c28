"""Each check of new files fails if the stage before it is broken, and nothing of that run is published."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetCheckEvaluation, AssetCheckSeverity, DagsterInstance, ExecuteInProcessResult, materialize
from pyspark.sql import SparkSession

from tests.support.lake_answers import view_rows
from tests.support.lake_views import compacted
from tests.support.made import SCHEMA, add, write
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings, TableEntry
from writetime.delta.parquet import WrittenFile
from writetime.delta.table_changes import TableChange
from writetime.files import merging
from writetime.lake import state
from writetime.lake.changes import ChangeWriter
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.lake.views import time_now
from writetime.row_events import compare, events, stream
from writetime.row_events.compare import Matched, OrderedRows
from writetime.view import placed_rows
from writetime.view.refreshing import refresh
from writetime_dagster.assets import backfill, changes, row_events, tables, views
from writetime_dagster.assets.naming import key_of
from writetime_dagster.resources import DatabaseResource, KafkaResource, LakeResource, SparkResource

pytestmark = pytest.mark.long

RESOURCES: dict[str, Any] = {
    "spark": SparkResource(),
    "lake": LakeResource(),
    "database": DatabaseResource(),
    "kafka": KafkaResource(),
}
YEAR = 366 * 86_400_000_000


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lake's tasks run in this process, where a test breaks them. Spark reads the files for the checks."""

    def run(_: SparkResource, function: Callable[[Any], Any], of: Iterable[Any]) -> list[Any]:
        return list(map(function, of))

    monkeypatch.setattr(SparkResource, "run", run)


def run(*assets: Any, **named: Any) -> ExecuteInProcessResult:
    with DagsterInstance.ephemeral() as instance:
        return materialize(list(assets), instance=instance, resources=RESOURCES, raise_on_error=False, **named)


def check_of(result: ExecuteInProcessResult, name: str) -> AssetCheckEvaluation:
    [check] = [each for each in result.get_asset_check_evaluations() if each.check_name == name]
    return check


def assert_stopped(result: ExecuteInProcessResult, check: str, *faults: str) -> None:
    """The check failed, and so did the run, of which nothing is materialized."""
    found = check_of(result, check)
    assert (found.passed, found.severity) == (False, AssetCheckSeverity.ERROR)
    assert all(fault in str(found.description) for fault in faults), found.description
    assert not result.success
    assert result.get_asset_materialization_events() == []


def test_changes_in_a_wrong_bucket(settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{settings.cassandra.keyspace}.items"
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        for i in range(40):
            session.execute(f"INSERT INTO {name} (id, v) VALUES ({i}, 'a')")
    [folder] = take_snapshot(settings, name, "now")
    table = FollowedTable(name, TableEntry(capture=False, snapshots=[str(folder)]))
    second = {"partition_key": backfill.token_ranges.get_partition_keys()[backfill.TOKEN_RANGES // 2]}
    with monkeypatch.context() as broken:
        whole = ChangeWriter.write
        broken.setattr(ChangeWriter, "write", lambda self, batches: whole(replace(self, buckets=1), batches))
        assert_stopped(run(backfill.build_backfill_asset(table), **second), "changes_are_in_place", "`in_its_bucket`")
    assert open_table(settings, name).changes.load().files == []
    assert run(backfill.build_backfill_asset(table), **second).success
    assert open_table(settings, name).changes.load().files != []


def out_of_order(target: Any, rows: pa.Table, *rest: Any, **named: Any) -> list[WrittenFile]:
    return WRITE_ROWS(target, rows.take(list(range(rows.num_rows))[::-1]), *rest, **named)


def twice(target: Any, rows: pa.Table, *rest: Any, **named: Any) -> list[WrittenFile]:
    return WRITE_ROWS(target, rows.take([n // 2 for n in range(2 * rows.num_rows)]), *rest, **named)


WRITE_ROWS = merging.write_rows


@pytest.mark.parametrize(
    ("broken", "fault"), [(out_of_order, "`in_order`"), (twice, "`level`, `key`, `position`, `kind`")]
)
def test_levels_that_are_no_state(
    settings: Settings,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[..., list[WrittenFile]],
    fault: str,
) -> None:
    table = create_table(settings, SCHEMA)
    add(table, [write(i, 1, 5, v="a") for i in range(4)], 1)
    of_state, of_view = (
        make(FollowedTable(table.name)) for make in (changes.build_state_asset, views.build_view_asset)
    )
    with monkeypatch.context() as patch:
        patch.setattr(merging, "write_rows", broken)
        assert_stopped(run(of_state, of_view), "levels_are_a_state", fault)
    assert table.state.load().files == []
    assert not table.view.load().files
    assert run(of_state).success


def test_a_write_time_of_next_year_warns(settings: Settings, spark: SparkSession) -> None:
    table = create_table(settings, SCHEMA)
    add(table, [write(1, 1, 5, v="a"), write(2, 1, time_now() + YEAR, v="b")], 1)
    result = run(changes.build_state_asset(FollowedTable(table.name)))
    found = check_of(result, "write_times_are_past")
    assert (result.success, found.passed, found.severity) == (True, False, AssetCheckSeverity.WARN)
    add(table, [write(3, 1, 6, v="a")], 2)
    assert check_of(run(changes.build_state_asset(FollowedTable(table.name))), "write_times_are_past").passed


@dataclass(frozen=True)
class Shown:
    """A table with a view of four rows, and changes that the view does not have yet: a new row and a changed one."""

    table: LakeTable
    asset: Any

    def assert_view_stays(self) -> None:
        rows = [(row["id"], row["v"]) for row in view_rows(compacted(self.table))]
        assert sorted(rows) == [(0, "a"), (1, "a"), (2, "a"), (3, "a")]

    def assert_refreshed(self) -> None:
        """And the check passes."""
        result = run(self.asset)
        assert check_of(result, "rows_are_those_of_the_state").passed
        rows = [(row["id"], row["v"]) for row in view_rows(compacted(self.table))]
        assert sorted(rows) == [(0, "b"), (1, "a"), (2, "a"), (3, "a"), (4, "b")]


@pytest.fixture
def shown(settings: Settings, spark: SparkSession) -> Shown:
    table = create_table(settings, SCHEMA)
    add(table, [write(i, 1, 5, v="a") for i in range(4)], 1)
    state.fold(table)
    refresh(settings, table)
    add(table, [write(i, 1, 6, v="b") for i in (0, 4)], 2)
    return Shown(table, views.build_view_asset(FollowedTable(table.name)))


def test_a_state_that_has_lost_rows_of_the_view(shown: Shown) -> None:
    """The view has a row that would be new by the state: a refresh would publish it twice."""
    whole = shown.table.state.load()
    shown.table.state.commit(whole, TableChange(whole.files))
    assert_stopped(run(shown.asset), "rows_are_those_of_the_state", "row count equal")
    shown.assert_view_stays()
    state.rebuild(shown.table)
    shown.assert_refreshed()


@pytest.mark.parametrize("whole", [False, True])
def test_a_view_whose_files_lack_a_row(shown: Shown, monkeypatch: pytest.MonkeyPatch, *, whole: bool) -> None:
    write_placed = placed_rows.write_placed
    chosen = {"run_config": {"ops": {shown.asset.op.name: {"config": {"whole": whole}}}}}
    with monkeypatch.context() as broken:
        broken.setattr(placed_rows, "write_placed", lambda to, rows, bucket: write_placed(to, rows.slice(1), bucket))
        assert_stopped(run(shown.asset, **chosen), "rows_are_those_of_the_state", "row count equal")
    shown.assert_view_stays()
    shown.assert_refreshed()


def test_a_rewritten_view_whose_files_lack_a_row(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRITETIME_LAKE__VIEW", "rewritten")
    write_file = placed_rows.write_file
    with monkeypatch.context() as broken:
        broken.setattr(placed_rows, "write_file", lambda to, rows, *rest: write_file(to, rows.slice(1), *rest))
        assert_stopped(run(shown.asset), "rows_are_those_of_the_state", "row count equal")
    shown.assert_view_stays()
    shown.assert_refreshed()


def test_a_view_without_any_of_its_new_files(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no file to check."""
    with monkeypatch.context() as broken:
        broken.setattr(placed_rows, "write_placed", lambda *_: [])
        assert_stopped(run(shown.asset), "rows_are_those_of_the_state", "row count equal")
    shown.assert_view_stays()


def fewer_rows(before: OrderedRows, after: OrderedRows) -> Matched:
    """Compare rows, and overlook the last difference."""
    found = compare.changed(before, after)
    return Matched(found.before[:-1], found.after[:-1])


@pytest.mark.parametrize("broken", ["comparison", "files", "all files"])
def test_row_events_that_lack_one(
    settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    table = create_table(settings, SCHEMA)
    add(table, [write(i, 1, 5, v="a") for i in range(4)], 1)
    assets = [
        make(FollowedTable(table.name))
        for make in (row_events.build_row_events_asset, row_events.build_row_events_topic_asset)
    ]
    write_rows = stream.write_rows
    with monkeypatch.context() as patch:
        if broken == "comparison":
            patch.setattr(events, "changed", fewer_rows)
        elif broken == "files":
            patch.setattr(stream, "write_rows", lambda to, rows, *rest: write_rows(to, rows.slice(1), *rest))
        else:
            patch.setattr(stream, "write_rows", lambda *_: [])
        fault = "`rows_created` sum" if broken == "comparison" else "row count equal"
        assert_stopped(run(*assets), "events_are_of_their_kinds", fault)
    assert table.row_events.load().files == []
    result = run(*assets)
    assert result.success
    assert check_of(result, "events_are_of_their_kinds").passed
    [made] = [e for e in result.get_asset_materialization_events() if e.asset_key == key_of(table.name, "row_topic")]
    assert made.materialization.metadata["events_published"].value == 4


def test_a_view_that_as_a_whole_is_not_as_its_entry_expects(settings: Settings, spark: SparkSession) -> None:
    """Such as by its number of rows, which no refresh checks."""
    table = create_table(settings, SCHEMA)
    expected = [{"type": "expect_table_row_count_to_be_between", "max_value": 1}]
    check: Any = views.build_expectations_check(FollowedTable(table.name, TableEntry(expect=expected), SCHEMA))
    for number, passes in ((1, True), (2, False)):
        add(table, [write(number, 1, 5, v="a")], number)
        refresh(settings, table)
        found = check(spark=SparkResource(), lake=LakeResource())
        assert (found.passed, found.severity) == (passes, AssetCheckSeverity.ERROR)


def test_a_table_whose_changes_the_database_does_not_log(settings: Settings) -> None:
    """The check names the statement that turns this on."""
    name = f"{settings.cassandra.keyspace}.items"
    check: Any = tables.is_captured_by_the_database(FollowedTable(name))
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        found = check(database=DatabaseResource())
        assert not found.passed
        session.execute(found.metadata["fix"].value)
    assert check(database=DatabaseResource()).passed
