"""The data from before the capture of a table is published along with live writes, while any program is killed."""

import json
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cassandra.concurrent import execute_concurrent_with_args

from tests.capture.agents import node_id
from tests.support.captured import Captured
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.waiting import wait_for
from writetime.capture.state_files import read_json, write_json
from writetime.clients import node_snapshots
from writetime.lake.history import history_from
from writetime.lake.horizon import captured_until
from writetime.lake.table import open_table
from writetime.lake.views import time_now, virtual
from writetime.landing.landing import Landing
from writetime.landing.topics import captured_tables
from writetime.runtime.nodetool import nodetool
from writetime.servers.process import free_port

pytestmark = pytest.mark.long

ROWS, FILES = 4_000, 2


@pytest.fixture
def landed(captured: Captured, tmp_path: Path) -> Captured:
    """A captured keyspace with its snapshots, and a separate lake."""
    lake = captured.settings.lake.model_copy(update={"path": str(tmp_path / "lake")})
    captured.settings = captured.with_options(snapshot="initial").model_copy(update={"lake": lake})
    return captured


def fill(captured: Captured, table: str, files: int = FILES) -> None:
    """Write a table of several SSTables, with rows, cells, a range and a partition deleted."""
    session = captured.node.session()
    insert = session.prepare(f"INSERT INTO {captured.keyspace}.{table} (k, c, v, w) VALUES (?, ?, ?, {{'a': 1}})")
    for number in range(files):
        # Large enough that an SSTable is several portions.
        rows = [(i % 97, i, f"{number} {i} {'-' * 300}") for i in range(number, ROWS, files)]
        assert all(done for done, _ in execute_concurrent_with_args(session, insert, rows, concurrency=100))
        captured.write(
            f"DELETE FROM {{ks}}.{table} WHERE k = {number + 1}",
            f"DELETE FROM {{ks}}.{table} WHERE k = {number + 20} AND c > 100 AND c < 2000",
            f"UPDATE {{ks}}.{table} USING TTL 100000 SET s = 'static' WHERE k = {number + 40}",
        )
        # Not by the oracle, whose start costs more than two of these.
        nodetool(captured.node.jmx_port, "flush", captured.keyspace, table)


def snapshots(captured: Captured) -> dict[str, dict[str, Any]]:
    """How far the snapshots are, by table."""
    found = read_json(captured.settings.capture.state_dir / "snapshots.json") or {}
    return {progress["table"].partition(".")[2]: progress for progress in found.values()}


def is_done(captured: Captured, *tables: str) -> bool:
    """Whether the snapshots of these tables are published and deleted."""
    return all(snapshots(captured).get(table, {}).get("status") == "done" for table in tables)


@contextmanager
def live_writes(captured: Captured) -> Iterator[None]:
    """Update rows of table `t` and delete ranges of it, all the time."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            captured.write(
                f"UPDATE {{ks}}.t SET v = 'live {number}', w = w + {{'b': {number}}} WHERE k = {number % 97} AND c = 7",
                f"DELETE FROM {{ks}}.t WHERE k = {(number * 7) % 97} AND c > {number * 3} AND c < {number * 3 + 50}",
            )
            time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


@contextmanager
def agent_program(captured: Captured, module: str = "writetime") -> Iterator[subprocess.Popen[bytes]]:
    """An agent as a program, until the end at the latest."""
    process = captured.program(module)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def kill_while_it_reads(captured: Captured) -> None:
    """Kill an agent when it has a part of the snapshot, which is not all of it: the lake does not report it as
    complete."""
    with agent_program(captured, "tests.capture.held_agent") as process:
        while not snapshots(captured).get("t", {}).get("read"):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    killed = snapshots(captured)["t"]
    assert killed["status"] == "taken"
    assert 0 < killed["published"] < ROWS
    name = f"{captured.keyspace}.t"
    Landing(captured.settings, name).drain()
    assert captured_until(open_table(captured.settings, name).changes.load()) == 0


def assert_read_once(captured: Captured) -> None:
    """Rows that were read and recorded before the kill were not read again."""
    progress = snapshots(captured)["t"]
    assert progress["changes"] == progress["published"] > 0.9 * ROWS
    assert progress["read"] == progress["sstables"] == FILES + 1
    assert not list(captured.node.folder.glob(f"data/{captured.keyspace}/*/snapshots/writetime-*"))
    origins = [o for o in captured.changes("t")["origin"].to_pylist() if o["source"] == "sstable"]
    files = Counter(o["file"] for o in origins)
    assert len(files) == FILES + 1
    assert progress["published"] <= sum(files.values()) < progress["published"] + 1.5 * ROWS / FILES
    assert {o["node"] for o in origins} == {node_id(captured)}


def test_a_snapshot_during_live_writes_and_a_kill(landed: Captured) -> None:
    create = "CREATE TABLE {ks}.t (k int, c int, s text static, v text, w map<text, int>, PRIMARY KEY (k, c))"
    landed.write(create + " WITH compaction = {'class': 'SizeTieredCompactionStrategy', 'enabled': false}")
    fill(landed, "t")
    landed.write("ALTER TABLE {ks}.t WITH cdc = true")
    name = f"{landed.keyspace}.t"
    with ExitStack() as until_written:
        until_written.enter_context(live_writes(landed))
        kill_while_it_reads(landed)
        with agent_program(landed) as process:
            wait_for(lambda: is_done(landed, "t", "marks"))
            until_written.close()
            landed.settle()
            written_at = time_now()
            wait_for(lambda: landed.watermarks.read()[node_id(landed)].tables[name].until > written_at)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    assert_read_once(landed)
    Landing(landed.settings, name).drain()
    table = open_table(landed.settings, name)
    assert view_rows(virtual(table)) == cql_rows(landed.node.session(), landed.schema("t"))
    changes = table.changes.load()
    assert captured_until(changes) > written_at
    assert snapshots(landed)["t"]["taken_at"] <= (history_from(changes) or 0)


def without_cdc(captured: Captured, table: str) -> str:
    """Make a table with three rows, which a snapshot flushes into one SSTable; return its name."""
    captured.write(f"CREATE TABLE {{ks}}.{table} (k int PRIMARY KEY, v text)")
    captured.write(*(f"INSERT INTO {{ks}}.{table} (k, v) VALUES ({k}, 'a')" for k in range(3)))
    return f"{captured.keyspace}.{table}"


def of_snapshot(captured: Captured, table: str) -> int:
    """How many changes of a table came from its node_snapshots."""
    return sum(origin["source"] == "sstable" for origin in captured.changes(table)["origin"].to_pylist())


def metrics_of(port: int) -> str:
    """The metrics that an agent serves."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read().decode()


class Damage:
    """Damages one snapshot and deletes another one, of those that are taken by the first call of nodetool."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broken: str, gone: str) -> None:
        self.broken, self.gone = broken, gone
        self.calls: list[tuple[str, ...]] = []
        self._ask, self._take = node_snapshots.nodetool, node_snapshots.take
        monkeypatch.setattr(node_snapshots, "nodetool", self.nodetool)
        monkeypatch.setattr("writetime.capture.snapshots.take", self.take)

    def nodetool(self, port: int, *arguments: str) -> None:
        self.calls.append(arguments)
        self._ask(port, *arguments)

    def take(self, *arguments: Any) -> dict[str, list[Path]]:
        found = self._take(*arguments)
        if len(self.calls) == 1:
            (data,) = found[self.broken][0].glob("*-Data.db")
            content = bytearray(data.read_bytes())
            content[len(content) // 2] ^= 0xFF
            # A separate file, as it is the table's, too.
            data.unlink()
            data.write_bytes(content)
            shutil.rmtree(found[self.gone][0])
        return found


def test_snapshots_that_are_broken_or_missing(
    landed: Captured, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three tables that are taken at once, one snapshot is damaged and one deleted before the agent reads it."""
    tables = {name: without_cdc(landed, name) for name in ("broken", "gone", "sound")}
    landed.write(*(f"ALTER TABLE {name} WITH cdc = true" for name in tables.values()))
    damage = Damage(monkeypatch, tables["broken"], tables["gone"])
    landed.pace = replace(landed.pace, snapshot=0.1)
    port = free_port()
    with landed.agent(metrics_port=port):
        wait_for(lambda: is_done(landed, "gone", "sound", "marks"))
        shown = metrics_of(port)
        status = json.loads((landed.settings.capture.state_dir / "status.json").read_text())
    assert [of_snapshot(landed, name) for name in tables] == [0, 3, 3]
    assert status["snapshots"][tables["broken"]]["status"] == "failed"
    assert_shown(tables, shown)
    assert_logged(tables, snapshots(landed)["broken"]["tag"], caplog.text)
    # One call took all snapshots, and another one the deleted one again; each tag was deleted once.
    assert [sorted(c[-1].split(",")) for c in damage.calls if c[0] == "snapshot"] == [
        sorted([*tables.values(), f"{landed.keyspace}.marks"]),
        [tables["gone"]],
    ]
    assert len([c for c in damage.calls if c[0] == "clearsnapshot"]) <= 3
    # The watermark waits for that one alone, and a start takes it again.
    marks = landed.watermarks.read()[node_id(landed)].tables
    assert (marks[tables["broken"]].until, marks[tables["sound"]].until > 0) == (0, True)
    with landed.agent():
        wait_for(lambda: is_done(landed, "broken"))
        assert not list(landed.node.folder.glob(f"data/{landed.keyspace}/*/snapshots/writetime-*/*"))
    assert of_snapshot(landed, "broken") == 3
    landed.assert_same(*tables)


def assert_shown(tables: dict[str, str], metrics: str) -> None:
    """Which snapshots are done."""
    assert f'writetime_capture_snapshot_done{{table="{tables["sound"]}"}} 1.0' in metrics
    assert f'writetime_capture_snapshot_done{{table="{tables["broken"]}"}} 0.0' in metrics
    assert f'writetime_capture_snapshot_changes{{table="{tables["gone"]}"}} 3.0' in metrics


def assert_logged(tables: dict[str, str], broken_tag: str, log: str) -> None:
    """The faults and their remedies."""
    assert f"{tables['broken']}: its snapshot {broken_tag} is given up" in log
    assert "repair the table (nodetool scrub)" in log
    assert f"{tables['gone']}: the snapshot" in log
    assert "is gone, a new one is taken" in log


def test_modes(landed: Captured) -> None:
    landed.write(
        "CREATE TABLE {ks}.old (k int PRIMARY KEY, v text)",
        "INSERT INTO {ks}.old (k, v) VALUES (1, 'a')",
        "CREATE TABLE {ks}.dropped (k int PRIMARY KEY) WITH cdc = true",
    )
    old = f"{landed.keyspace}.old"
    with landed.agent(snapshot="never"):
        # After the rows that the log still has.
        landed.settle()
        landed.write("ALTER TABLE {ks}.old WITH cdc = true")
        landed.settle()
    assert old not in captured_tables(landed.settings)
    with landed.agent(snapshot="schema-only"):
        wait_for(lambda: old in captured_tables(landed.settings))
        landed.settle()
    assert Landing(landed.settings, old).drain() == 0
    assert view_rows(virtual(open_table(landed.settings, old))) == []
    assert snapshots(landed) == {}
    landed.write("DROP TABLE {ks}.dropped", "CREATE TABLE {ks}.empty (k int PRIMARY KEY) WITH cdc = true")
    with landed.agent():
        wait_for(lambda: is_done(landed, "old", "empty", "marks"))
    assert [snapshots(landed)[table]["published"] for table in ("old", "empty")] == [1, 0]
    assert "dropped" not in snapshots(landed)
    landed.assert_same("old", "marks")
    with landed.agent():
        landed.settle()
    assert landed.changes("old").num_rows == 1
    with landed.agent(snapshot="always"):
        wait_for(lambda: landed.changes("old").num_rows == 2)
        wait_for(lambda: is_done(landed, "old", "empty", "marks"))
    # As an agent leaves it that ended before it had deleted the node_snapshots.
    stored = landed.settings.capture.state_dir / "snapshots.json"
    content = read_json(stored) or {}
    write_json(stored, {key: value | {"status": "published"} for key, value in content.items()})
    with landed.agent(snapshot="always"):
        wait_for(lambda: landed.changes("old").num_rows == 3)
