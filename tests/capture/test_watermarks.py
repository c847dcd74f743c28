"""The watermarks of sources in the lake never pass unpublished or unlanded changes. Some sources hold them."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Session
from click.testing import CliRunner

from tests.capture.agents import complete, node_id
from tests.support.captured import REPLICATION, Captured
from tests.support.lake_views import held
from tests.support.settings import write_settings
from tests.support.waiting import wait_for
from writetime.capture.commitlog_agent import Agent
from writetime.capture.node_schemas import Node
from writetime.capture.progress import AgentProgress
from writetime.cli.main import main
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.delta.versions import TableVersion
from writetime.lake import state
from writetime.lake.horizon import captured_until, next_horizon, registered_sources
from writetime.lake.table import LakeTable, open_table
from writetime.lake.views import time_now, virtual
from writetime.landing.landed_offsets import waiting
from writetime.landing.landing import Landing
from writetime.wire.watermarks import AgentStatus, SourceMarks, TableMark, statuses

pytestmark = pytest.mark.long


@pytest.fixture
def landed(captured: Captured, tmp_path: Path) -> Captured:
    """A captured keyspace, a separate lake, and agents that report their positions all the time."""
    lake = captured.settings.lake.model_copy(update={"path": str(tmp_path / "lake")})
    captured.settings = captured.settings.model_copy(update={"lake": lake})
    captured.pace = replace(captured.pace, mark=0.05)
    return captured


def mark(captured: Captured, table: str = "marks") -> TableMark:
    """The last report of the node's agent about a table."""
    marks = captured.watermarks.read().get(node_id(captured), SourceMarks())
    return marks.tables.get(f"{captured.keyspace}.{table}", TableMark(0))


def land(captured: Captured) -> TableVersion:
    """Land the marks; return the changes then."""
    name = f"{captured.keyspace}.marks"
    Landing(captured.settings, name).drain()
    return open_table(captured.settings, name).changes.load()


def status(captured: Captured) -> dict[str, Any]:
    """The report of the agent about itself."""
    return json.loads((captured.settings.capture.state_dir / "status.json").read_text())


def reported(captured: Captured) -> AgentStatus:
    """The report of the agent about itself that Kafka has."""
    found = captured.watermarks.read()[node_id(captured)].status
    assert found is not None
    return found


def test_watermarks_reach_the_lake(landed: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, node = f"{landed.keyspace}.marks", node_id(landed)
    with landed.agent():
        landed.settle()
        first = time_now()
        wait_for(lambda: mark(landed).until > first)
        changes = land(landed)
        assert registered_sources(changes) == {node}
        assert first < captured_until(changes) <= time_now()
        # With messages each commit has the watermark; without, only one that has moved by a minute.
        second = time_now()
        landed.settle()
        wait_for(lambda: mark(landed).until > second)
        changes = land(landed)
        assert captured_until(changes) > second
        wait_for(lambda: mark(landed).until > captured_until(changes))
        assert land(landed).version == changes.version
        assert 0 < waiting(changes, name, {}, 0, landed.watermarks.read()).seconds < 60
        wait_for((landed.settings.capture.state_dir / "status.json").exists)
        landed.settle()
        monkeypatch.setattr("writetime.landing.landing.WATERMARK_MICROS", 1)
        assert land(landed).version == changes.version + 1
    # A node that no longer exists holds nothing, until an agent reports it again.
    write_settings(landed.settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    shown = CliRunner().invoke(main, ["status"]).output
    assert "all writes are published up to 20" in shown
    answer = CliRunner().invoke(main, ["retire", "nobody"])
    assert "no agent has reported nobody" in answer.output
    assert node in answer.output
    assert CliRunner().invoke(main, ["retire", node], catch_exceptions=False).exit_code == 0
    assert registered_sources(land(landed)) == set()
    with landed.agent():
        landed.settle()
        wait_for(lambda: not landed.watermarks.read()[node].retired)
    assert registered_sources(land(landed)) == {node}


def test_no_watermark_passes_unpublished_writes(landed: Captured) -> None:
    with landed.agent():
        landed.settle()
        wait_for(lambda: mark(landed).until)
    # The node's later writes are published in rounds that the agent runs one by one.
    before = mark(landed).until
    assert before
    written_at = time_now()
    landed.fill(3)
    wait_for(lambda: complete(landed))
    progress = AgentProgress(landed.settings.capture.state_dir)
    one = Agent(landed.settings, Node(landed.node.session(), None), progress, landed.pace)
    stop = threading.Event()
    stop.set()
    one.round(stop)
    assert mark(landed).until == before
    wait_for(lambda: one.round(threading.Event()) or mark(landed).until > written_at)
    assert_a_broken_segment_holds_the_watermark(landed, one)
    assert_a_vanished_segment_holds_the_watermark(landed, one)
    one.close()
    progress.close()


def assert_a_broken_segment_holds_the_watermark(landed: Captured, one: Agent) -> None:
    """Until the segment is put back as it was."""
    landed.fill(3)
    *_, path = complete(landed)
    held_from = mark(landed).until
    content = path.read_bytes()
    index = path.with_name(f"{path.stem}_cdc.idx")
    index_content = index.read_text()
    break_segment(path)
    wait_for(lambda: one.round(threading.Event()) or not path.exists())
    time.sleep(0.1)
    one.round(threading.Event())
    assert mark(landed).until == held_from
    assert path.name in str(one.held_by)
    said = statuses(landed.watermarks.read())[node_id(landed)]
    assert said["held_by"] == one.held_by
    assert said["totals"]["segments_set_aside"] == said["lag"]["aside_segments"] == 1
    assert said["published_until"] == held_from
    index.write_text(index_content)
    path.write_bytes(content)
    wait_for(lambda: one.round(threading.Event()) or not path.exists())
    wait_for(lambda: one.round(threading.Event()) or one.held_by is None)
    assert mark(landed).until > held_from


def break_segment(path: Path) -> None:
    """Flip a bit, in a separate file, because the node still has the valid one."""
    broken = bytearray(path.read_bytes())
    broken[len(broken) // 2] ^= 1
    copy = path.with_suffix(".broken")
    copy.write_bytes(broken)
    copy.replace(path)


def assert_a_vanished_segment_holds_the_watermark(landed: Captured, one: Agent) -> None:
    """Until someone deletes the file that records it."""
    landed.fill(2)
    for path in complete(landed):
        path.unlink()
    held_from = mark(landed).until
    time.sleep(0.1)
    one.round(threading.Event())
    assert "vanished before it was read to its end" in str(one.held_by)
    assert mark(landed).until == held_from
    (reason,) = (landed.settings.capture.state_dir / "aside").glob("*.reason.json")
    reason.unlink()
    wait_for(lambda: one.round(threading.Event()) or one.held_by is None)
    assert mark(landed).until > held_from


class SecondNode:
    """Another node with an agent, which has a table that the first one has, too."""

    def __init__(self, first: Captured, settings: Settings, session: Session) -> None:
        self.captured = copy(first)
        self.captured.settings = settings
        self.session = session
        self.name = f"{first.keyspace}.t"
        self.id = str(session.execute("SELECT host_id FROM system.local").one().host_id)
        session.execute(f"CREATE KEYSPACE {first.keyspace} WITH replication = {REPLICATION}")
        create = f"CREATE TABLE {self.name} (k int PRIMARY KEY, v text) WITH id = {uuid.uuid4()} AND cdc = true"
        for execute in (first.write, session.execute):
            execute(f"{create} AND gc_grace_seconds = 1")

    def until(self) -> int:
        marks = self.captured.watermarks.read().get(self.id, SourceMarks())
        return marks.tables.get(self.name, TableMark(0)).until

    def passed(self, instant: int) -> bool:
        """Whether its agent has published all writes up to then."""
        # Tests of other folders have dropped tables on this node, whose last writes cannot be read: a gap, which
        # is closed by hand.
        for reason in (self.captured.settings.capture.state_dir / "aside").glob("*.reason.json"):
            reason.unlink()
        return self.until() > instant


@pytest.fixture
def second(landed: Captured, server_settings: Settings, tmp_path: Path) -> Iterator[SecondNode]:
    capture = landed.settings.capture.model_copy(update={"state_dir": tmp_path / "other"})
    settings = landed.settings.model_copy(update={"cassandra": server_settings.cassandra, "capture": capture})
    with connect(settings) as session:
        yield SecondNode(landed, settings, session)


def due(table: LakeTable) -> int:
    """Up to when tombstones may be dropped."""
    return next_horizon(table, time_now(), 1e-9) or 0


def test_tombstones_wait_for_the_slowest_node(
    landed: Captured, second: SecondNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes, each with an agent, write to one table; tombstones go as far as both are landed."""
    monkeypatch.setattr("writetime.landing.landing.WATERMARK_MICROS", 1)
    name, grace = second.name, 1_000_000
    with landed.agent():
        with second.captured.agent():
            landed.write(*(f"INSERT INTO {{ks}}.t (k, v) VALUES ({k}, 'first')" for k in (1, 2)))
            second.session.execute(f"INSERT INTO {name} (k, v) VALUES (3, 'second')")
            written = time_now()
            wait_for(lambda: second.passed(written) and mark(landed, "t").until > written)
        landed.write("DELETE FROM {ks}.t WHERE k = 1")
        deleted = time_now()
        wait_for(lambda: mark(landed, "t").until > deleted + 2 * grace)
        assert Landing(landed.settings, name).drain() == 4
        table = open_table(landed.settings, name)
        changes = table.changes.load()
        assert registered_sources(changes) == {node_id(landed), second.id}
        assert captured_until(changes) == second.until() < deleted
        state.fold(table)
        state.drop_tombstones(table, due(table))
        assert [row["k"] for row in held(table).to_pylist() if row["tombstone"]] == [1]
        with second.captured.agent():
            wait_for(lambda: second.passed(deleted + 2 * grace))
            assert Landing(landed.settings, name).drain() == 0
            assert due(table) > deleted
            assert state.drop_tombstones(table, due(table)) == 1
            assert not any(row["tombstone"] or row["k"] == 1 for row in held(table).to_pylist())
            # A write from before the deletion that comes now, as by a hint, is deleted as it was.
            late = f"INSERT INTO {name} (k, v) VALUES (1, 'late') USING TIMESTAMP {deleted - grace}"
            second.session.execute(late)
            wait_for(lambda: Landing(landed.settings, name).drain() == 1)
    for step in (lambda _: None, state.fold, state.rebuild):
        step(table)
        rows = [row for part in virtual(table) for row in part.to_pylist()]
        assert sorted((row["k"], row["v"]) for row in rows) == [(2, "first"), (3, "second")]


def test_a_gap_holds_no_table_whose_snapshot_was_begun_after_it(landed: Captured) -> None:
    gone = [
        "CREATE TABLE {ks}.gone (k int PRIMARY KEY) WITH cdc = true",
        "INSERT INTO {ks}.gone (k) VALUES (1)",
        "DROP TABLE {ks}.gone",
    ]

    def held_by() -> str | None:
        return reported(landed)["held_by"]

    def is_taken() -> bool:
        return reported(landed)["snapshots"][f"{landed.keyspace}.marks"]["status"] == "done"

    landed.write(*gone)
    landed.fill(2)
    with landed.agent(snapshot="initial"):
        landed.settle()
        wait_for(lambda: reported(landed)["lag"]["aside_segments"] == 1)
        aside_at = time_now()
        wait_for(lambda: mark(landed).until > aside_at and is_taken())
        assert held_by() is None
    # Changes that were written after the snapshot, which cannot have them, hold the watermark.
    landed.write(*gone)
    held_from = mark(landed).until
    with landed.agent(snapshot="initial"):
        landed.settle()
        wait_for(lambda: "dropped before" in (held_by() or ""))
        time.sleep(0.2)
        assert mark(landed).until == held_from
    # A snapshot that is begun now has that, too.
    with landed.agent(snapshot="always"):
        wait_for(lambda: mark(landed).until > held_from)
        assert held_by() is None


def test_a_time_without_cdc_holds_the_watermark_until_a_newer_snapshot(landed: Captured) -> None:
    landed.write("CREATE TABLE {ks}.t (k int PRIMARY KEY) WITH cdc = true", "INSERT INTO {ks}.t (k) VALUES (1)")
    name = f"{landed.keyspace}.t"

    def until(table: str) -> int:
        marks = landed.watermarks.read()[node_id(landed)]
        return marks.tables.get(f"{landed.keyspace}.{table}", TableMark(0)).until

    def is_held() -> bool:
        return "had cdc = false" in reported(landed).get("held", {}).get(name, "")

    with landed.agent(snapshot="initial"):
        landed.settle()
        wait_for(lambda: until("t"))
        landed.write("ALTER TABLE {ks}.t WITH cdc = false")
        switched_at = time_now()
        landed.write("INSERT INTO {ks}.t (k) VALUES (2)")
        # The other tables continue.
        wait_for(lambda: until("marks") > switched_at)
    # On again while no agent runs: it is known that it was off.
    landed.write("ALTER TABLE {ks}.t WITH cdc = true", "INSERT INTO {ks}.t (k) VALUES (3)")
    with landed.agent(snapshot="initial"):
        landed.settle()
        wait_for(is_held)
        on_at = time_now()
        wait_for(lambda: until("marks") > on_at)
        assert until("t") <= switched_at
    with landed.agent(snapshot="always"):
        wait_for(lambda: until("t") > on_at)
        assert not is_held()
    Landing(landed.settings, name).drain()
    rows = [row for part in virtual(open_table(landed.settings, name)) for row in part.to_pylist()]
    assert sorted(row["k"] for row in rows) == [1, 2, 3]
