"""The assets of a followed table on a real snapshot: read by token range, merged, and compared with the database's
rows.
"""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    DagsterInstance,
    ExecuteInProcessResult,
    RunConfig,
    asset,
    build_asset_context,
    materialize,
)
from pyspark.sql import SparkSession

from tests.assets.runs import numbers
from tests.support.lake_answers import cql_rows, unordered, view_rows
from tests.support.lake_views import compacted
from tests.support.made import SCHEMA, add, batch, write
from writetime.clients import great_expectations
from writetime.clients.database import connect
from writetime.clients.great_expectations import gxe
from writetime.clients.node_snapshots import clear_snapshot, take_snapshot
from writetime.core.config import Settings, TableEntry
from writetime.core.errors import WritetimeError
from writetime.delta.parquet import write_file
from writetime.lake.backfill import backfill as run_backfill
from writetime.lake.backfill import find_snapshots
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.lake.views import virtual
from writetime.schema.cql import parse_table
from writetime.schema.system import read_schema
from writetime.servers.process import free_port
from writetime.storage.kernel.primitives import token
from writetime.view.refreshing import refresh
from writetime_dagster.assets import backfill, changes, expectations, failures, table_jobs, views
from writetime_dagster.assets.naming import key_of
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource

pytestmark = pytest.mark.long

RESOURCES: dict[str, Any] = {"spark": SparkResource(), "lake": LakeResource(), "database": DatabaseResource()}


class Materialized:
    """A followed table, and the runs of its assets."""

    def __init__(self, name: str, instance: DagsterInstance) -> None:
        self.name, self.instance = name, instance
        self.table = FollowedTable(name, TableEntry(capture=False))

    def run(self, *assets: Any, **kwargs: Any) -> ExecuteInProcessResult:
        return materialize(list(assets), instance=self.instance, resources=RESOURCES, **kwargs)

    def snapshot(self) -> str:
        """Take a snapshot; return its folder."""
        taken = numbers(self.run(backfill.snapshots(self.table)), key_of(self.name, "snapshots"))
        [folder] = cast(list[str], taken["folders"])
        assert folder.endswith(str(taken["tag"]))
        return folder

    def backfill_of_wrong_changes(self, settings: Settings, partition: str, patch: pytest.MonkeyPatch) -> None:
        """Rows that are not as expected are not committed."""
        wrong = [gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=["none"])]
        patch.setattr(expectations, "of_changes", lambda: wrong)
        failed = self.run(backfill.build_backfill_asset(self.table), partition_key=partition, raise_on_error=False)
        assert [check.passed for check in failed.get_asset_check_evaluations()] == [False]
        assert not failed.success
        assert open_table(settings, self.name).changes.load().files == []

    def backfill(self, partition: str) -> object:
        """Return how many changes came in."""
        result = self.run(backfill.build_backfill_asset(self.table), partition_key=partition)
        assert all(check.passed for check in result.get_asset_check_evaluations())
        return numbers(result, key_of(self.name, "backfill"))["changes_added"]


def make_items(settings: Settings) -> tuple[str, list[dict[str, Any]]]:
    """A table in the database: its name, and its rows."""
    name = f"{settings.cassandra.keyspace}.items"
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {name} (id int, n int, v text, s int STATIC, PRIMARY KEY (id, n))")
        for i in range(60):
            session.execute(f"INSERT INTO {name} (id, n, v) VALUES ({i // 2}, {i % 2}, 'v{i}')")
        session.execute(f"UPDATE {name} SET s = 1 WHERE id = 500")
        return name, cql_rows(session, read_schema(session, name))


def test_snapshot_to_view(settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wanted = make_items(settings)
    with DagsterInstance.ephemeral() as instance:
        made = Materialized(name, instance)
        folder = made.snapshot()
        partition = backfill.token_ranges.get_partition_keys()[0]
        with monkeypatch.context() as patch:
            made.backfill_of_wrong_changes(settings, partition, patch)
        # The same range twice; the others without Dagster, as each run takes its time.
        first, again = (cast(int, made.backfill(partition)) for _ in range(2))
        in_lake = open_table(settings, name)
        others = dict(run_backfill(in_lake, find_snapshots([folder])))
        assert again == others[0] == 0
        assert first + sum(others.values()) == len(wanted)
        result = made.run(
            changes.build_state_asset(made.table),
            views.build_view_asset(made.table),
            views.build_verify_check(made.table),
        )
    assert_checks(result, len(wanted))
    assert numbers(result, key_of(name, "view"))["dagster/row_count"] == len(wanted)
    assert unordered(compacted(in_lake)) == sorted(map(repr, wanted))


def test_a_snapshot_after_a_materialization_that_no_run_made(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of the web UI, which has no metadata: the second run deletes what the first has taken, so that one
    snapshot stays on the node. The next run deletes those of a failed run.
    """
    name, _ = make_items(settings)
    with DagsterInstance.ephemeral() as instance:
        made = Materialized(name, instance)
        key = key_of(name, "snapshots")
        context = build_asset_context(instance=instance)
        instance.report_runless_asset_event(AssetMaterialization(key))
        with pytest.raises(WritetimeError, match=f"there is no snapshot of {name}: materialize "):
            backfill._last_taken(context, made.table)
        first, taken = (snapshot_before_another_event(made, key) for _ in range(2))
        with pytest.raises(WritetimeError):
            find_snapshots(cast(list[str], first["folders"]))
        assert backfill._last_taken(context, made.table) == taken["folders"]
        [folder] = map(Path, cast(list[str], taken["folders"]))
        assert list(folder.parent.iterdir()) == [folder]

        def failing(settings: Settings, table: str, tag: str) -> None:
            if tag == taken["tag"]:
                raise WritetimeError("the node does not answer")
            clear_snapshot(settings, table, tag)

        with monkeypatch.context() as patch:
            patch.setattr(backfill, "clear_snapshot", failing)
            assert not made.run(backfill.snapshots(made.table), raise_on_error=False).success
        last = made.snapshot()
        assert list(map(str, folder.parent.iterdir())) == [last]


def snapshot_before_another_event(made: Materialized, key: AssetKey) -> dict[str, object]:
    taken = numbers(made.run(backfill.snapshots(made.table)), key)
    made.instance.report_runless_asset_event(AssetMaterialization(key))
    return taken


def assert_checks(result: ExecuteInProcessResult, rows: int) -> None:
    """Each check of the state and the view has passed."""
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert all(check.passed for check in checks.values())
    assert checks.keys() == {
        "levels_are_a_state",
        "write_times_are_past",
        "rows_are_those_of_the_state",
        "rows_are_as_expected",
        "timestamps_fit",
        "rows_are_those_of_the_database",
    }
    assert checks["levels_are_a_state"].metadata["expectations_met"].value == len(expectations.of_levels())
    assert checks["rows_are_those_of_the_database"].metadata["rows_in_the_database"].value == rows


def proof(name: str) -> AssetCheckResult:
    check = views.build_verify_check(FollowedTable(name))
    answer = check(views.VerifyConfig(wait_seconds=0), LakeResource(), DatabaseResource())
    assert isinstance(answer, AssetCheckResult)
    return answer


def test_the_view_is_proven_against_the_database(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    table = f"{settings.cassandra.keyspace}.items"
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {table} (id int, n int, v text, w int, PRIMARY KEY (id, n))")
        session.execute(f"INSERT INTO {table} (id, n, v) VALUES (1, 1, 'a')")
        paths = [str(folder) for folder in take_snapshot(settings, table, "now")]
        found = find_snapshots(paths)
        in_lake = create_table(settings, found.schema)
        list(run_backfill(in_lake, found))
        # No reader got wrong rows, but nothing is proven.
        answer = proof(table)
        assert (answer.passed, answer.severity) == (False, AssetCheckSeverity.WARN)
        refresh(settings, in_lake)
        assert proof(table).passed
        # Writes that the lake has not seen yet are lag, and the check counts them.
        session.execute(f"INSERT INTO {table} (id, n, v) VALUES (2, 1, 'later')")
    answer = proof(table)
    assert answer.passed
    assert answer.metadata["rows_lagging"].value == 1
    assert cast(float, answer.metadata["lag_seconds"].value) > 0
    # A row that the database never had is a difference.
    add(in_lake, [write(3, 1, 5, v="never")], 1, in_lake.schema())
    answer = proof(table)
    assert (answer.passed, answer.severity) == (False, AssetCheckSeverity.ERROR)
    assert answer.metadata["rows_differing"].value == 1
    assert "never" in str(answer.metadata["differences"].value)
    # Where there is no database nothing is proven, and nothing is wrong.
    monkeypatch.setenv("WRITETIME_CASSANDRA__PORT", str(free_port()))
    answer = proof(table)
    assert (answer.passed, answer.severity) == (False, AssetCheckSeverity.WARN)
    assert "no database answers" in str(answer.metadata["not_proven"].value)


def levels_of(settings: Settings, session: SparkSession, rows: list[dict[str, Any]]) -> dict[tuple[str, str], bool]:
    """The results of the expectations on a level with these rows, by expectation and column."""
    table = create_table(settings, SCHEMA)
    level = pa.Table.from_batches([batch(rows)])
    written = write_file(table.state.storage, level, 1, level["token"])
    found = great_expectations.validate(
        expectations.levels(session, table, [written]),
        "levels",
        [*expectations.of_levels(), *expectations.of_write_times()],
    )
    return {(f.expectation, f.column): f.success for f in found}


def test_invalid_states_are_found(settings: Settings, spark: SparkSession) -> None:
    rows = sorted((write(i, n, 5, v="a") for i in range(40) for n in range(2)), key=lambda r: (r["token"], r["n"]))
    # Those of the second of two buckets.
    rows = [row for row in rows if row["token"] >= 0]
    assert len(rows) >= 4
    assert all(levels_of(settings, spark, rows).values())
    future = {**rows[0], "v": {**rows[0]["v"], "write_time": 1 << 60}}
    elsewhere = {**rows[-1], "token": -(1 << 62)}
    wrong = levels_of(settings, spark, [*rows[1:], future, elsewhere])
    assert {column for (_, column), met in wrong.items() if not met} == {
        "in_order",
        "in_its_bucket",
        "level, key, position, kind",
        "last_write_time",
    }


def test_levels_that_are_not_a_state_are_not_committed(
    settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(settings, SCHEMA)
    add(table, [write(1, 1, 5, v="a")], 1)
    wrong = [gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=["none"])]
    monkeypatch.setattr(expectations, "of_levels", lambda: wrong)
    followed = FollowedTable(SCHEMA.full_name)
    result = materialize(
        [changes.build_state_asset(followed), views.build_view_asset(followed)],
        instance=DagsterInstance.ephemeral(),
        resources=RESOURCES,
        raise_on_error=False,
    )
    assert not result.success
    assert not result.get_asset_materialization_events()
    [failed] = [check for check in result.get_asset_check_evaluations() if not check.passed]
    assert failed.check_name == "levels_are_a_state"
    assert table.state.load().files == []
    assert len(view_rows(virtual(table))) == 1


def assert_says_what_failed(result: ExecuteInProcessResult) -> None:
    """In the run's failure and in the check, for a person, so without a stack trace."""
    fault = "`v` in set ['a', 'b']: 1 of 1 row fails, e.g. c (id 1, n 1)"
    [event] = [event for event in result.all_events if event.is_step_failure]
    error = event.step_failure_data.error
    assert error is not None
    assert error.message == (
        f"{SCHEMA.full_name}: the new rows are not as expected; the view stays as it was: {fault}; correct these rows "
        f"in the database, or `expect` in [tables.{SCHEMA.full_name}]\n"
    )
    assert (error.stack, error.cause, error.context) == ([], None, None)
    assert [check.description for check in result.get_asset_check_evaluations() if not check.passed] == [fault]


def test_a_view_that_is_not_as_the_entry_expects_is_not_published(settings: Settings, spark: SparkSession) -> None:
    """The view keeps its earlier rows; once the rows are as expected again, it is refreshed again."""
    table = create_table(settings, SCHEMA)
    expected = [{"type": "expect_column_values_to_be_in_set", "column": "v", "value_set": ["a", "b"]}]
    followed = FollowedTable(SCHEMA.full_name, TableEntry(expect=expected), SCHEMA)
    shown = views.build_view_asset(followed)

    def refreshed(value: str, at: int) -> tuple[bool, list[Any]]:
        add(table, [write(1, 1, at, v=value)], at)
        result = materialize([shown], instance=DagsterInstance.ephemeral(), resources=RESOURCES, raise_on_error=False)
        checks = {check.check_name: check.passed for check in result.get_asset_check_evaluations()}
        wanted = {"rows_are_those_of_the_state": True, "rows_are_as_expected": result.success}
        assert checks == wanted | ({"timestamps_fit": True} if result.success else {})
        if not result.success:
            assert_says_what_failed(result)
        return result.success, [row["v"] for row in view_rows(compacted(table))]

    assert refreshed("a", 1) == (True, ["a"])
    assert refreshed("c", 2) == (False, ["a"])
    assert refreshed("b", 3) == (True, ["b"])


def test_a_view_is_refreshed_by_its_changes_unless_a_run_requests_all_rows(
    settings: Settings, spark: SparkSession
) -> None:
    table = create_table(settings, SCHEMA)
    add(table, [write(n, 1, 1, v="a") for n in range(9)], 1)
    shown = views.build_view_asset(FollowedTable(SCHEMA.full_name, TableEntry(), SCHEMA))

    def refreshed(*, whole: bool) -> tuple[Any, ...]:
        result = materialize(
            [shown],
            instance=DagsterInstance.ephemeral(),
            resources=RESOURCES,
            run_config=RunConfig({shown.op.name: views.ViewConfig(whole=whole)}),
        )
        [made] = result.get_asset_materialization_events()
        found = made.step_materialization_data.materialization.metadata
        return tuple(found[name].value for name in ("dagster/row_count", "rows_written", "rows_marked"))

    assert refreshed(whole=False) == (9, 9, 0)
    add(table, [write(1, 1, 2, v="b")], 2)
    assert refreshed(whole=False) == (9, 1, 1)
    assert refreshed(whole=True) == (9, 9, 0)
    assert Counter(row["v"] for row in view_rows(compacted(table))) == {"a": 8, "b": 1}


def test_timestamps_that_do_not_fit_are_named_and_stop_nothing(settings: Settings, spark: SparkSession) -> None:
    schema = parse_table("CREATE TABLE shop.items (at timestamp, n int, v set<timestamp>, PRIMARY KEY (at, n))")
    table = create_table(settings, schema)
    cell = {"tombstone": False, "write_time": 1}
    rows = []
    for number, at in enumerate(((1 << 63) - 1, (1 << 63) - 2, 0)):
        key = at.to_bytes(8, "big")
        row = {"kind": "row", "at": at, "key": key, "token": token(key), "n": 1, "position": b"\x40\x80\0\0\1\x38"}
        row |= {"marker": {"write_time": 1}, "v": {"elements": [{"path": number, **cell}, {"path": at, **cell}]}}
        rows.append(row)
    add(table, rows, 1, schema)
    shown = views.build_view_asset(FollowedTable(SCHEMA.full_name, TableEntry(), schema))
    result = materialize([shown], instance=DagsterInstance.ephemeral(), resources=RESOURCES)
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert checks["rows_are_those_of_the_state"].passed
    found = checks["timestamps_fit"]
    assert (found.passed, found.severity) == (False, AssetCheckSeverity.WARN)
    assert found.metadata["rows_by_column"].value == {"at": 2, "v": 2}
    assert found.description == "`at`: 2 of all 3 rows do not fit; `v`: 2 of all 3 rows do not fit"
    assert Counter(row["at"] for row in view_rows(compacted(table))) == {None: 2, 0: 1}
    # The next refresh records which rows it has checked.
    result = materialize([shown], instance=DagsterInstance.ephemeral(), resources=RESOURCES)
    [later] = [check for check in result.get_asset_check_evaluations() if check.check_name == "timestamps_fit"]
    numbers_of = {name: later.metadata[name].value for name in ("rows_checked", "all_rows_checked")}
    assert (later.passed, numbers_of) == (True, {"rows_checked": 0, "all_rows_checked": False})


def test_a_fault_for_an_operator_is_one_sentence_and_is_not_retried(settings: Settings) -> None:
    result = materialize(
        [changes.build_state_asset(FollowedTable("shop.none"))],
        instance=DagsterInstance.ephemeral(),
        resources=RESOURCES,
        raise_on_error=False,
    )
    [failure] = result.get_step_failure_events()
    error = failure.step_failure_data.error
    assert error is not None
    assert "load the table shop.none with `writetime backfill`" in error.message
    assert not [event for event in result.all_events if event.is_step_up_for_retry]


def test_a_table_that_fails_keeps_no_other_from_its_maintenance(
    settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [dataclasses.replace(SCHEMA, keyspace=settings.cassandra.keyspace, name=name) for name in "abc"]
    first, second, third = (create_table(settings, schema).name for schema in tables)
    kept = []

    def upkeep(_: Settings, table: LakeTable, run: Any) -> dict[str, int]:
        if table.name == second:
            raise RuntimeError("a bug")
        kept.append(table.name)
        return {}

    monkeypatch.setattr(table_jobs, "upkeep", upkeep)
    run = table_jobs.maintain_job([first, second, third]).execute_in_process(resources=RESOURCES, raise_on_error=False)
    assert not run.success
    assert kept == [first, third]
    [failure] = [event for event in run.all_events if event.is_step_failure]
    assert f"{second}: RuntimeError: a bug" in str(failure.event_specific_data)


def test_an_unknown_error_is_tried_again() -> None:
    tried = []

    @asset
    @failures.retry_if_transient(soon_seconds=0)
    def broken() -> None:
        tried.append(1)
        raise RuntimeError("a bug")

    @asset
    def sound() -> None:
        """An asset of another table."""

    result = materialize([broken, sound], raise_on_error=False)
    assert len(tried) == 4
    assert [event.asset_key for event in result.get_asset_materialization_events()] == [sound.key]
