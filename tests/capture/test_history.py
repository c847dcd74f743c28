"""Schemas that change while they are captured."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.capture.agents import with_lake
from tests.support.captured import Captured
from tests.support.lake_answers import view_rows
from tests.support.waiting import wait_for
from writetime.capture.commitlog_agent import Pace
from writetime.capture.node_schemas import Node, SchemaWatch
from writetime.clients.node_snapshots import take_snapshot
from writetime.lake import views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.table import create_table, open_table
from writetime.landing.landing import Landing
from writetime.landing.topics import captured_tables
from writetime.schema.stored import from_json
from writetime.schema.system import from_rows
from writetime.schema.table import Column, SchemaError, TableSchema
from writetime.schema.types import Native
from writetime.verify.comparison import verify

# Each write comes right after the change that it needs.
BEFORE = [
    "CREATE TYPE {ks}.point (x int, y int)",
    "CREATE TABLE {ks}.t (k int, c int, s text static, a int, l list<int>, f frozen<point>, u point, "
    "PRIMARY KEY (k, c)) WITH cdc = true",
    "INSERT INTO {ks}.t (k, c, s, a, l, f, u) VALUES (1, 1, 's', 1, [1], {x: 1, y: 1}, {x: 1, y: 1})",
]
AFTER = [
    "ALTER TABLE {ks}.t ADD late decimal",
    "INSERT INTO {ks}.t (k, c, late) VALUES (1, 2, 1.50)",
    "ALTER TYPE {ks}.point ADD z text",
    "INSERT INTO {ks}.t (k, c, f, u) VALUES (1, 3, {x: 1, z: 'new'}, {y: 2, z: 'new'})",
    "ALTER TABLE {ks}.t DROP a",
    "ALTER TABLE {ks}.t DROP l",
    "INSERT INTO {ks}.t (k, c, s) VALUES (2, 1, 'after')",
    "ALTER TABLE {ks}.t ADD a int",
    "INSERT INTO {ks}.t (k, c, a) VALUES (2, 2, 7)",
    "CREATE TABLE {ks}.young (k int PRIMARY KEY, v text) WITH cdc = true",
    "INSERT INTO {ks}.young (k, v) VALUES (1, 'v')",
    "CREATE TABLE {ks}.gone (k int PRIMARY KEY) WITH cdc = true",
    "INSERT INTO {ks}.gone (k) VALUES (1)",
]


def test_schemas_that_change(captured: Captured) -> None:
    """With the agent there or not."""
    with captured.agent():
        captured.write(*BEFORE)
        captured.settle()
        captured.write(*AFTER)
        gone = captured.schema("gone")
        captured.settle()
        # Known to the agent, dropped before it reads the last write.
        captured.write("INSERT INTO {ks}.gone (k) VALUES (2)", "DROP TABLE {ks}.gone")
        captured.settle()
    captured.write("ALTER TABLE {ks}.young ADD w int", "INSERT INTO {ks}.young (k, w) VALUES (2, 2)")
    captured.write("UPDATE {ks}.t SET a = 8 WHERE k = 1 AND c = 1")
    with captured.agent():
        captured.settle()
    captured.assert_same("t", "young")
    assert sorted(captured.changes("gone", gone)["k"].to_pylist()) == [1, 2]
    progress = json.loads((captured.settings.capture.state_dir / "progress.json").read_text())
    assert all(not s["set_aside"] and s["reason"] is None for s in progress["segments"].values())
    stored = captured.settings.capture.state_dir / "schemas" / f"{captured.schema('t').id}.json"
    kept = [from_json(version["table"]) for version in json.loads(stored.read_text())["versions"]]
    # Those between are there if the agent looked in time.
    assert "l" not in {d.name for d in kept[0].dropped}
    assert "l" in {d.name for d in kept[-1].dropped}
    assert Column("late", Native("decimal")) in kept[-1].columns


def test_changes_of_schemas_are_received(captured: Captured, tmp_path: Path) -> None:
    """Sooner than the agent asks, where no write makes it ask."""
    captured.pace = Pace(schema=3600.0)
    empty = tmp_path / "no segments"
    empty.mkdir()
    with captured.agent(cdc_raw=empty):
        wait_for(lambda: f"{captured.keyspace}.marks" in captured_tables(captured.settings))
        for table in ("first", "second"):
            captured.write(f"CREATE TABLE {{ks}}.{table} (k int PRIMARY KEY) WITH cdc = true")
            wait_for(lambda table=table: f"{captured.keyspace}.{table}" in captured_tables(captured.settings))
        captured.write("ALTER TABLE {ks}.first ADD v text")
        stored = captured.settings.capture.state_dir / "schemas" / f"{captured.schema('first').id}.json"
        wait_for(
            lambda: (
                Column("v", Native("text"))
                in from_json(json.loads(stored.read_text())["versions"][-1]["table"]).columns
            )
        )


def test_only_tables_that_changed_are_built_again(
    captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all tables that a node has. A new type may change each table of its keyspace."""
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY) WITH cdc = true")
    watch = SchemaWatch(tmp_path, Node(captured.node.session(), None))
    assert watch.refresh()
    built: list[str] = []

    def build(table: Any, *rows: Any) -> TableSchema:
        built.append(f"{table['keyspace_name']}.{table['table_name']}")
        return from_rows(table, *rows)

    monkeypatch.setattr("writetime.capture.node_schemas.from_rows", build)
    captured.write("ALTER TABLE {ks}.t ADD v int")
    assert watch.refresh()
    assert built == [f"{captured.keyspace}.t"]
    [schema] = [schema for schema in watch.tables.captured if schema.full_name == f"{captured.keyspace}.t"]
    assert Column("v", Native("int")) in schema.columns
    captured.write("CREATE TYPE {ks}.u (a int)")
    assert not watch.refresh()
    assert sorted(built[1:]) == [f"{captured.keyspace}.{table}" for table in ("marks", "t")]


def test_key_columns_that_are_renamed(captured: Captured, tmp_path: Path) -> None:
    """The lake keeps their names: what was captured before and after, a snapshot and the database itself fit together,
    also where two columns swap their names."""
    name = f"{captured.keyspace}.t"
    captured.settings = with_lake(captured.settings, tmp_path / "lake")
    captured.write(
        'CREATE TABLE {ks}.t (p int, "key" int, c int, d int, v text, PRIMARY KEY ((p, "key"), c, d)) WITH cdc = true',
        "INSERT INTO {ks}.t (p, \"key\", c, d, v) VALUES (1, 2, 3, 4, 'before')",
    )
    with captured.agent():
        captured.settle()
        assert Landing(captured.settings, name).drain() == 1
        captured.write(
            *(f"ALTER TABLE {{ks}}.t RENAME {one} TO {other}" for one, other in (("c", "x"), ("d", "c"), ("x", "d"))),
            'ALTER TABLE {ks}.t RENAME "key" TO "Q q"',
            "INSERT INTO {ks}.t (p, \"Q q\", d, c, v) VALUES (1, 2, 3, 5, 'after')",
            "UPDATE {ks}.t SET v = 'changed' WHERE p = 1 AND \"Q q\" = 2 AND d = 3 AND c = 4",
        )
        captured.settle()
        assert Landing(captured.settings, name).drain() == 2
    table = open_table(captured.settings, name)
    wanted = [
        {"p": 1, "key": 2, "c": 3, "d": 4, "v": "changed"},
        {"p": 1, "key": 2, "c": 3, "d": 5, "v": "after"},
    ]
    assert view_rows(views.virtual(table)) == wanted
    report = verify(captured.settings, table, 0)
    assert report.differences == []
    assert sum(r.database_rows for r in report.ranges) == 2
    backfill_later_names(captured, tmp_path)
    assert view_rows(views.virtual(table)) == wanted
    captured.write("ALTER TABLE {ks}.t RENAME p TO r", "ALTER TABLE {ks}.t ADD p int")
    with captured.agent(), pytest.raises(SchemaError, match="the key column p was renamed, and another column"):
        wait_for(lambda: Landing(captured.settings, name).drain())


def backfill_later_names(captured: Captured, tmp_path: Path) -> None:
    """Bring a snapshot into the lake that has the earlier names, and into a new one, which keeps the later ones."""
    name = f"{captured.keyspace}.t"
    found = find_snapshots([str(folder) for folder in take_snapshot(captured.settings, name, tmp_path.name)])
    assert [c.name for c in found.schema.clustering] == ["d", "c"]
    assert sum(changes for _, changes in backfill(create_table(captured.settings, found.schema), found))
    other = with_lake(captured.settings, tmp_path / "new")
    backfilled = create_table(other, found.schema)
    assert sum(changes for _, changes in backfill(backfilled, found))
    assert [c.name for c in backfilled.schema().clustering] == ["d", "c"]
    assert Landing(other, name).drain() == 3
    assert verify(captured.settings, backfilled, 0).differences == []


def test_a_type_within_clustering_columns_that_grows(captured: Captured) -> None:
    captured.write(
        "CREATE TYPE {ks}.place (a int)",
        "CREATE TABLE {ks}.grown (k int, c frozen<place>, d frozen<tuple<int, frozen<place>>>, v int, "
        "PRIMARY KEY (k, c, d)) WITH cdc = true",
    )
    with captured.agent():
        captured.write("INSERT INTO {ks}.grown (k, c, d, v) VALUES (1, {a: 1}, (1, {a: 1}), 1)")
        captured.settle()
        captured.write(
            "ALTER TYPE {ks}.place ADD b text",
            "INSERT INTO {ks}.grown (k, c, d, v) VALUES (1, {a: 1, b: 'x'}, (1, {a: 1}), 2)",
            "INSERT INTO {ks}.grown (k, c, d, v) VALUES (1, {a: 1}, (1, {a: 1, b: 'y'}), 3)",
            "UPDATE {ks}.grown SET v = 4 WHERE k = 1 AND c = {a: 1} AND d = (1, {a: 1})",
            "DELETE FROM {ks}.grown WHERE k = 1 AND c = {a: 1, b: 'x'}",
        )
        captured.settle()
        assert not list((captured.settings.capture.state_dir / "aside").glob("*.reason.json"))
    captured.assert_same("grown")
