"""TRUNCATE, and DROP followed by CREATE of the same name, on a running ScyllaDB: the lake discards the same data."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cassandra.cluster import Session

from tests.scylla.following import settings_for
from tests.scylla.node import Node
from tests.support.lake_answers import view_rows
from tests.support.programs import agent
from tests.support.scylla_server import new_name
from tests.support.waiting import wait_for
from writetime.core.config import Settings
from writetime.core.errors import NotInLake
from writetime.lake import views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.horizon import captured_until
from writetime.lake.table import open_table
from writetime.landing.landing import Landing
from writetime.landing.topics import is_published
from writetime.schema.system import read_schema
from writetime.scylla_cdc.log import SUFFIX
from writetime.verify.comparison import verify
from writetime.wire.watermarks import TableMark, WatermarkTopic


def lands(settings: Settings, name: str, wanted: list[dict[str, Any]]) -> Callable[[], bool]:
    """Return a function that lands all changes, and returns whether the view has these rows."""

    def look() -> bool:
        if not is_published(settings, name):
            return False
        Landing(settings, name).drain()
        # The topic may not have a message yet.
        with suppress(NotInLake):
            rows = view_rows(views.virtual(open_table(settings, name)))
            return sorted(rows, key=str) == sorted(wanted, key=str)
        return False

    return look


def test_a_table_that_is_truncated(live: Settings, session: Session, nodes: list[Node], tmp_path: Path) -> None:
    name = f"{live.cassandra.keyspace}.{new_name('t')}"
    settings = settings_for(live, name, tmp_path)
    session.execute(f"CREATE TABLE {name} (k int PRIMARY KEY, v text) WITH cdc = {{'enabled': true}}", timeout=120)

    def mark() -> TableMark:
        marks = WatermarkTopic(settings).read().get(name + SUFFIX)
        return marks.tables[name] if marks else TableMark(0)

    def watermark() -> int:
        return captured_until(open_table(settings, name).changes.load())

    with agent(settings):
        for k in range(5):
            session.execute(f"INSERT INTO {name} (k, v) VALUES ({k}, 'old')")
        wait_for(lambda: mark().until)
        wait_for(lands(settings, name, [{"k": k, "v": "old"} for k in range(5)]))
        session.execute(f"INSERT INTO {name} (k, v) VALUES (7, 'never seen')")
        session.execute(f"TRUNCATE {name}", timeout=120)
        truncated_at = time.time_ns() // 1000
        session.execute(f"INSERT INTO {name} (k, v) VALUES (3, 'new')")
        wait_for(lambda: mark().truncation)
        wait_for(lands(settings, name, [{"k": 3, "v": "new"}]))
        wait_for(lambda: mark().until > truncated_at)
        landing = Landing(settings, name)
        landing.drain()
        assert watermark() < truncated_at
        assert f"{name} was truncated at" in (landing.held_by or "")
        table = open_table(settings, name)
        assert verify(settings, table, 10).differences == []
        schema = read_schema(session, name)
        assert list(backfill(table, find_snapshots([str(node.snapshot(schema, "later")) for node in nodes])))
        # A watermark without changes is committed every five minutes, and a running landing checks for snapshots each
        # minute.
        session.execute(f"INSERT INTO {name} (k, v) VALUES (4, 'newer')")
        landing = Landing(settings, name)
        wait_for(lambda: landing.drain() >= 0 and watermark() > truncated_at)
        assert landing.held_by is None
        assert verify(settings, table, 10).differences == []


def test_a_table_that_is_dropped_and_created_again(live: Settings, session: Session, tmp_path: Path) -> None:
    name = f"{live.cassandra.keyspace}.{new_name('t')}"
    settings = settings_for(live, name, tmp_path)
    for columns, values, row in (
        ("(k int PRIMARY KEY, v text)", "(k, v) VALUES (1, 'first')", {"k": 1, "v": "first"}),
        ("(k int PRIMARY KEY, v text)", "(k, v) VALUES (2, 'second')", {"k": 2, "v": "second"}),
        ("(k text, v int, PRIMARY KEY (k, v))", "(k, v) VALUES ('a', 1)", {"k": "a", "v": 1}),
    ):
        session.execute(f"CREATE TABLE {name} {columns} WITH cdc = {{'enabled': true}}", timeout=120)
        with agent(settings):
            session.execute(f"INSERT INTO {name} {values}")
            wait_for(lands(settings, name, [row]))
        assert verify(settings, open_table(settings, name), 10).differences == []
        session.execute(f"DROP TABLE {name}", timeout=120)
