"""Schemas that change while they are captured."""

import json
from pathlib import Path

import pytest

from tests.capture.harness import Captured
from tests.capture.test_segments import wait_for
from writetime.capture import agent
from writetime.capture.landing import captured_tables


def test_schemas_that_change(captured: Captured) -> None:
    """Each write comes right after the change that it needs, with the agent there or not."""
    before = [
        "CREATE TYPE {ks}.point (x int, y int)",
        "CREATE TABLE {ks}.t (k int, c int, s text static, a int, l list<int>, f frozen<point>, u point, "
        "PRIMARY KEY (k, c)) WITH cdc = true",
        "INSERT INTO {ks}.t (k, c, s, a, l, f, u) VALUES (1, 1, 's', 1, [1], {x: 1, y: 1}, {x: 1, y: 1})",
    ]
    after = [
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
    with captured.agent():
        captured.write(*before)
        captured.settle()
        captured.write(*after)
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
    progress = json.loads((captured.settings.capture.state / "progress.json").read_text())
    assert all(not s["set_aside"] and s["reason"] is None for s in progress["segments"].values())
    stored = captured.settings.capture.state / "schemas" / f"{captured.schema('t').id}.json"
    kept = [version["cql"] for version in json.loads(stored.read_text())["versions"]]
    # Those between are there if the agent looked in time.
    assert "DROP l USING TIMESTAMP" not in kept[0]
    assert "DROP l USING TIMESTAMP" in kept[-1]
    assert " late decimal" in kept[-1]


def test_changes_of_schemas_are_heard(captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sooner than the agent asks, where no write makes it ask."""
    monkeypatch.setattr(agent, "_SCHEMA_SECONDS", 3600.0)
    empty = tmp_path / "no segments"
    empty.mkdir()
    with captured.agent(cdc_raw=empty):
        wait_for(lambda: f"{captured.keyspace}.marks" in captured_tables(captured.settings))
        for table in ("first", "second"):
            captured.write(f"CREATE TABLE {{ks}}.{table} (k int PRIMARY KEY) WITH cdc = true")
            wait_for(lambda table=table: f"{captured.keyspace}.{table}" in captured_tables(captured.settings))
        captured.write("ALTER TABLE {ks}.first ADD v text")
        stored = captured.settings.capture.state / "schemas" / f"{captured.schema('first').id}.json"
        wait_for(lambda: "v text" in json.loads(stored.read_text())["versions"][-1]["cql"])
