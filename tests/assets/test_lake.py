"""The lake's assets on a real snapshot: by token range, merged, and checked against the database's own answer."""

from dagster import DagsterInstance, ExecuteInProcessResult, RunConfig, materialize
from pyspark.sql import SparkSession

from assets import lake
from resources import LakeResource, SparkResource
from tests.lake.answers import cql_rows, view_rows
from tests.lake.test_run import compacted, schema_of
from writetime.config import Settings
from writetime.database import connect
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.snapshot import take_snapshot
from writetime.lake.table import open_table

RESOURCES = {"spark": SparkResource(), "lake": LakeResource()}


def numbers(result: ExecuteInProcessResult, key: object) -> dict[str, object]:
    [event] = [e for e in result.get_asset_materialization_events() if e.asset_key == key]
    return {name: value.value for name, value in event.materialization.metadata.items()}


def test_snapshot_to_view(settings: Settings, spark: SparkSession) -> None:
    table = f"{settings.cassandra.keyspace}.items"
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {table} (id int, n int, v text, s int STATIC, PRIMARY KEY (id, n))")
        for i in range(60):
            session.execute(f"INSERT INTO {table} (id, n, v) VALUES ({i // 2}, {i % 2}, 'v{i}')")
        session.execute(f"UPDATE {table} SET s = 1 WHERE id = 500")
        wanted = cql_rows(session, schema_of(session, table))
    paths = [str(folder) for folder in take_snapshot(settings, table, "now")]
    added = []
    with DagsterInstance.ephemeral() as instance:
        run_config = RunConfig({"lake__changes": lake.BackfillConfig(table=table, paths=paths)})
        # The same range twice; the others without Dagster, as each run takes its time.
        for _ in range(2):
            result = materialize(
                [lake.changes],
                instance=instance,
                resources=RESOURCES,
                run_config=run_config,
                partition_key=lake.token_ranges.get_partition_keys()[3],
            )
            assert all(check.passed for check in result.get_asset_check_evaluations())
            added.append(numbers(result, lake.CHANGES)["changes_added"])
        in_lake = open_table(settings, table)
        others = dict(backfill(in_lake, find_snapshots(paths)))
        assert added[1] == others[3] == 0
        assert added[0] + sum(others.values()) == len(wanted)
        of_table = lake.TableConfig(table=table)
        result = materialize(
            [lake.lake_state, lake.lake_view],
            instance=instance,
            resources=RESOURCES,
            run_config=RunConfig({"lake__state": of_table, "lake__view": of_table}),
        )
    assert all(check.passed for check in result.get_asset_check_evaluations())
    assert numbers(result, lake.VIEW)["dagster/row_count"] == len(wanted)
    assert view_rows(compacted(in_lake)) == wanted
