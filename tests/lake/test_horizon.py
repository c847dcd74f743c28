"""Tombstones that the state drops: with any later changes, no view or event differs. A snapshot that could differ is
refused.

Oracle: our own second path: the view of all changes, merged at once without dropped tombstones. One test uses the
database.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import generated
from tests.support.commands import run
from tests.support.event_replay import replayed
from tests.support.examples import is_long_run
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.lake_views import held, looked_up
from tests.support.made import SCHEMA, add, new_table, settings_at, write
from tests.support.timed import SECOND, around, by_value, deletion, rows_at
from writetime.clients import node_snapshots
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.delta import buckets
from writetime.delta.bucketed_table import Conflict
from writetime.files.merging import Runner
from writetime.lake import backfill as backfilling
from writetime.lake import state, views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.horizon import (
    captured_until,
    horizon_of,
    next_horizon,
    raise_snapshot,
    register_source,
    retire_source,
    watermark,
    without_dropped,
)
from writetime.lake.table import create_table
from writetime.merge import live_rows, merge
from writetime.row_events import stream
from writetime.runtime.nodetool import nodetool
from writetime.schema.cql import parse_table
from writetime.schema.describe import to_cql
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema

pytestmark = pytest.mark.long

HOUR = 3600 * SECOND


@pytest.mark.parametrize("schema", [generated.SCHEMA, generated.COUNTERS], ids=lambda s: s.name)
@given(st.data(), st.randoms(use_true_random=False))
# The first one is the simplest.
@settings(max_examples=10 if is_long_run() else 2)
def test_no_view_and_no_event_shows_dropped_tombstones(
    schema: TableSchema, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, chooser: random.Random
) -> None:
    table = new_table(tmp_path_factory.mktemp("lake"), schema, buckets=2)
    second, seen, whole = 102, [], merge([], schema)
    for number in range(4):
        changes = around(data.draw(st.lists(generated.change(schema), min_size=3, max_size=6)))
        seen += changes
        second += chooser.randint(0, 2)
        # Files of one bucket and files of all buckets are in one table.
        with patch.object(buckets, "FEW_ROWS", chooser.choice([0, 2, 4096])):
            add(table, changes, number, schema)
            for step in chooser.sample([state.fold, state.fold, state.compact, state.rebuild], 2):
                step(table)
            if chooser.random() < 0.8:
                state.drop_tombstones(table, second * SECOND)
            whole = merge([generated.table(seen, schema)], schema)
            wanted = by_value(view_rows([live_rows(whole, schema, second)]))
            assert by_value(rows_at(table, second)) == wanted
            assert by_value(view_rows([looked_up(table, second)])) == wanted
            if chooser.random() < 0.5:
                stream.extend(table, second * SECOND)
    stream.extend(table, second * SECOND)
    wanted = by_value(view_rows([live_rows(whole, schema, second)]))
    assert by_value(replayed(table)) == wanted
    # A state that is rebuilt and one that grew are equal, once both have dropped their tombstones.
    state.fold(table)
    kept = [held(table)]
    state.rebuild(table)
    kept.append(held(table))
    horizon = horizon_of(table.state.load())
    found = [without_dropped(whole_state, schema, horizon) for whole_state in kept]
    assert merge(found[:1], schema).equals(merge(found[1:], schema))
    assert by_value(rows_at(table, second)) == wanted


def test_changes_that_are_folded_in_and_dropped_at_once(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=1)
    add(table, [write(1, 1, 5 * SECOND, v="old"), deletion(1, 1, 6 * SECOND)], 1)
    state.fold(table)
    add(table, [write(1, 1, 5 * SECOND, v="zombie")], 2)

    def beside(other: Callable[[], Any]) -> Runner:
        def run_both(function: Any, tasks: Any) -> list[Any]:
            done = [function(task) for task in tasks]
            other()
            return done

        return run_both

    # Levels that were added meanwhile are merged with the dropped rows; a fold that began before is refused.
    assert state.drop_tombstones(table, 8 * SECOND, beside(lambda: state.fold(table))) == 1
    assert rows_at(table, 100) == []
    add(table, [write(1, 1, 5 * SECOND, v="zombie again")], 3)
    with pytest.raises(Conflict):
        state.fold(table, beside(lambda: state.drop_tombstones(table, 9 * SECOND)))
    assert rows_at(table, 100) == []
    state.fold(table)
    assert rows_at(table, 100) == []


def test_tombstones_of_the_state_are_counted(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    rows = [write(i, 1, 5, v="a") for i in range(20)]
    add(table, [*rows, *(deletion(i, 1, 6) for i in range(7))], 1)
    state.fold(table)
    assert state.count_tombstones(table, table.state.load()) == 7
    # A level without any does not have the column.
    add(table, [write(30, 1, 5, v="a")], 2)
    state.fold(table)
    assert state.count_tombstones(table, table.state.load()) == 7


def test_rows_that_lived_at_the_last_batch_of_events_still_have_events(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=1)
    row = write(1, 1, 5 * SECOND, v="a")
    row["marker"] |= {"ttl": 2, "expiry": 7}
    row["v"] |= {"ttl": 2, "deletion_time": 7}
    add(table, [row], 1)
    state.fold(table)
    assert stream.extend(table, 6 * SECOND) == 1
    assert state.drop_tombstones(table, 8 * SECOND) == 1
    assert held(table).num_rows == 0
    assert stream.extend(table, 9 * SECOND) == 1
    assert replayed(table) == []


def test_how_far_the_horizon_may_be(tmp_path: Path) -> None:
    schema = parse_table("CREATE TABLE shop.items (id int, n int, PRIMARY KEY (id, n)) WITH gc_grace_seconds = 3600")
    assert parse_table(to_cql(schema)).gc_grace_seconds == 3600
    table = new_table(tmp_path, schema, buckets=1)
    now = 1000 * HOUR
    assert next_horizon(table, now, 24) is None
    raise_snapshot(table, 900 * HOUR)
    raise_snapshot(table, 800 * HOUR)
    assert next_horizon(table, now, 24) == 899 * HOUR
    assert next_horizon(table, now, 0) is None
    assert next_horizon(table, 700 * HOUR, 24) == 699 * HOUR
    # Sources count instead, once there are any; one that has not reported its position holds the watermark.
    for source in ("node-1", "node-2"):
        register_source(table, source)
    table.changes.append([], "node-1", 1, watermark("node-1", 950 * HOUR))
    assert captured_until(table.changes.load()) == 0
    assert next_horizon(table, now, 24) is None
    table.changes.append([], "node-2", 1, watermark("node-2", 940 * HOUR))
    assert next_horizon(table, now, 24) == 939 * HOUR
    retire_source(table, "node-2")
    assert next_horizon(table, now, 24) == 949 * HOUR
    add(table, [deletion(1, 1, 5 * HOUR)], 1, schema)
    state.fold(table)
    assert state.drop_tombstones(table, 949 * HOUR) == 1
    assert horizon_of(table.state.load()) == 949 * HOUR
    table.changes.append([], "node-1", 2, watermark("node-1", 960 * HOUR))
    assert next_horizon(table, now, 24) is None
    assert next_horizon(table, now, 10) == 959 * HOUR


def test_a_snapshot_from_before_a_deletion_that_the_database_forgot(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyspace = settings.cassandra.keyspace
    table = f"{keyspace}.forgotten"
    with connect(settings) as session:
        session.execute(
            f"CREATE TABLE {table} (id int, n int, v text, w int, PRIMARY KEY (id, n)) WITH gc_grace_seconds = 1"
        )
        for n in range(3):
            session.execute(f"INSERT INTO {table} (id, n, v) VALUES (1, {n}, 'a')")
        (older,) = take_snapshot(settings, table, "older")
        session.execute(f"DELETE FROM {table} WHERE id = 1 AND n = 1")
        _, port = node_snapshots.local_node(session)
        nodetool(port, "flush", keyspace, "forgotten")
        time.sleep(2)
        # A node counts deletions of whole seconds.
        nodetool(port, "compact", keyspace, "forgotten")
        (newer,) = take_snapshot(settings, table, "newer")
        wanted = cql_rows(session, read_schema(session, table))
    assert len(wanted) == 2
    first, second = (find_snapshots([str(folder)]) for folder in (older, newer))
    lake = create_table(settings_at(tmp_path, buckets=1), second.schema)
    assert lake.schema().gc_grace_seconds == 1
    list(backfill(lake, second))
    assert view_rows(views.virtual(lake)) == wanted
    with pytest.raises(
        WritetimeError, match=r"is refused, because deletions up to .* may have been dropped.*take a new one"
    ):
        list(backfill(lake, first))
    assert view_rows(views.virtual(lake)) == wanted
    assert list(backfill(lake, second)) == [(0, 0)]
    monkeypatch.setattr(backfilling, "require_newer", lambda *_: None)
    list(backfill(lake, first))
    assert len(view_rows(views.virtual(lake))) == 3


def test_maintain_drops_tombstones(settings: Settings) -> None:
    table = create_table(settings, SCHEMA)
    raise_snapshot(table, views.time_now())
    day = views.time_now() // (24 * HOUR) * 24 * HOUR
    add(table, [deletion(1, 1, day - 20 * 24 * HOUR), deletion(1, 2, day)], 1)
    assert "tombstones dropped in 1 bucket\n" in run("maintain", "shop.items")
    assert [r["n"] for r in held(table).to_pylist()] == [2]
    assert "tombstones dropped in 0 buckets" in run("maintain", "shop.items")
