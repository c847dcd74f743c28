"""The sensor that records schema changes. No server is needed."""

import pytest
from dagster import SensorResult, SkipReason, build_sensor_context

from writetime.lake.followed_tables import FollowedTable
from writetime.schema.cql import parse_table
from writetime_dagster.assets import table_jobs
from writetime_dagster.resources import DatabaseResource


def test_schema_changes_are_recorded_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def tick(cursor: str | None, *columns: str) -> SensorResult:
        schema = parse_table(f"CREATE TABLE shop.orders (id int PRIMARY KEY, {', '.join(columns)})")
        monkeypatch.setattr(
            table_jobs, "followed_tables", lambda _: ([FollowedTable("shop.orders", schema=schema)], [])
        )
        with build_sensor_context(cursor=cursor, resources={"database": DatabaseResource()}) as context:
            found = sensor(context)
        assert isinstance(found, SensorResult)
        assert isinstance(found.skip_reason, SkipReason)
        reasons.append(found.skip_reason.skip_message)
        return found

    sensor = table_jobs.schema_changes([FollowedTable("shop.orders")])
    reasons: list[str | None] = []
    first = tick(None, "item text")
    same = tick(first.cursor, "item text")
    changed = tick(same.cursor, "item text", "total int")
    assert reasons == ["recorded: shop.orders", "no schema has changed", "recorded: shop.orders"]
    assert [len(found.asset_events) for found in (first, same, changed)] == [1, 0, 1]
