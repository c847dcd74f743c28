"""Writes that a node does not log in `cdc_raw` hold the watermark, and ordinary restarts do not."""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.capture.agents import held, passes, restart, status_of, until, with_lake
from tests.support.captured import REPLICATION, Captured, captured_keyspace
from tests.support.format_server import FormatServer
from tests.support.settings import write_settings
from tests.support.waiting import wait_for
from writetime.cli.main import main
from writetime.core.config import Settings
from writetime.lake.views import time_now
from writetime.landing.landing import Landing

pytestmark = pytest.mark.long


@pytest.fixture
def captured(own_node: FormatServer, kafka: Settings, tmp_path: Path) -> Iterator[Captured]:
    """A captured keyspace of that node."""
    with captured_keyspace(own_node, kafka, tmp_path) as made:
        yield made


def reasons(captured: Captured) -> str:
    """The records of all gaps."""
    folder = captured.settings.capture.state_dir / "aside"
    return "\n".join(json.loads(path.read_text())["reason"] for path in folder.glob("*.reason.json"))


def stays(captured: Captured, reason: str, since: int) -> None:
    """Wait until a reason holds the watermark, and check that it has not passed a time."""
    wait_for(lambda: reason in held(captured))
    captured.settle()
    assert until(captured, "marks") <= since


def is_closed_by_a_snapshot(captured: Captured) -> None:
    """A snapshot that is taken after a gap ends it."""
    with captured.agent(snapshot="always"):
        passes(captured)
        assert not held(captured)


def off_and_on(captured: Captured) -> None:
    restart(captured, cdc_enabled=False)
    captured.write("INSERT INTO {ks}.marks (id) VALUES (-7)")
    restart(captured, cdc_enabled=True)


def other_folder(captured: Captured) -> None:
    other = captured.node.folder / "other"
    restart(captured, cdc_raw_directory=str(other))
    captured.write("INSERT INTO {ks}.marks (id) VALUES (-7)")
    # A node whose folder vanishes while it runs writes a segment that it cannot replay.
    captured.node.stop()
    other.rename(captured.node.folder / captured.keyspace)
    restart(captured, cdc_raw_directory=str(captured.node.cdc_raw))


def off_by_crashes(captured: Captured) -> None:
    restart(captured, signal.SIGKILL, cdc_enabled=False)
    captured.write("INSERT INTO {ks}.marks (id) VALUES (-7)")
    restart(captured, cdc_enabled=True)


def durable_off_and_on(captured: Captured) -> None:
    for value in ("false", "true"):
        captured.write(f"ALTER KEYSPACE {{ks}} WITH durable_writes = {value}")
        captured.write("INSERT INTO {ks}.marks (id) VALUES (-7)")


def cdc_off_and_on(captured: Captured) -> None:
    for value in ("false", "true"):
        captured.write(f"ALTER TABLE {{ks}}.marks WITH cdc = {value}")
        captured.write("INSERT INTO {ks}.marks (id) VALUES (-7)")


@pytest.mark.parametrize(
    ("lose", "reason"),
    [
        (off_and_on, "cdc_enabled: false"),
        (off_by_crashes, "cdc_enabled: false"),
        (durable_off_and_on, "durable_writes = false"),
        (cdc_off_and_on, "cdc = false"),
    ],
)
def test_lost_writes_hold_the_watermark(captured: Captured, lose: Callable[[Captured], None], reason: str) -> None:
    with captured.agent():
        captured.settle()
        passes(captured)
        lose(captured)
        stays(captured, reason, time_now())
    assert "writetime backfill" in held(captured)
    is_closed_by_a_snapshot(captured)


@pytest.mark.parametrize(
    ("lose", "reason"),
    [
        (off_and_on, "cdc_enabled: false"),
        (off_by_crashes, "cdc_enabled: false"),
        # A running agent reads the other folder.
        (other_folder, "another cdc_raw_directory"),
        (durable_off_and_on, "durable_writes = false"),
        (cdc_off_and_on, "cdc = false"),
    ],
)
def test_writes_that_are_lost_without_an_agent_hold_the_watermark(
    captured: Captured, lose: Callable[[Captured], None], reason: str
) -> None:
    with captured.agent():
        captured.settle()
        passes(captured)
    before = time_now()
    lose(captured)
    with captured.agent():
        stays(captured, reason, before)
    assert "writetime backfill" in held(captured)
    is_closed_by_a_snapshot(captured)


def test_ordinary_restarts_hold_nothing(captured: Captured) -> None:
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY) WITH cdc = true")
    signals = [signal.SIGTERM, signal.SIGKILL]
    for agent_runs in (True, False):
        with captured.agent():
            captured.settle()
            for i, sig in enumerate(signals if agent_runs else []):
                captured.write(f"INSERT INTO {{ks}}.t (k) VALUES ({i})")
                restart(captured, sig)
                passes(captured)
        for i, sig in enumerate([] if agent_runs else [*signals, signal.SIGKILL, *signals]):
            if i != 1:
                captured.write(f"INSERT INTO {{ks}}.t (k) VALUES ({100 + i})")
            restart(captured, sig)
    with captured.agent():
        passes(captured)
    assert not reasons(captured)
    captured.assert_same("t")


@pytest.mark.parametrize("at_run_time", [False, True])
def test_deleted_segments_hold_the_watermark(captured: Captured, cassandra_version: str, *, at_run_time: bool) -> None:
    if cassandra_version == "4.0":
        pytest.skip("cdc_block_writes came with 4.1")
    restart(captured, cdc_block_writes=at_run_time, cdc_total_space="12MiB")
    with captured.agent():
        passes(captured)
    if at_run_time:
        bean = "org.apache.cassandra.db:type=Commitlog"
        captured.node.nodetool("sjk", "mx", "-ms", "-b", bean, "-f", "CDCBlockWrites", "-v", "false")
    # The folder has segments of this start only, and none of them has a write to a captured table.
    before = time_now()
    for _ in range(15):
        # A busy node refuses more at once.
        captured.fill(2)
    try:
        with captured.agent():
            stays(captured, "cdc_block_writes: false", before)
        is_closed_by_a_snapshot(captured)
    finally:
        restart(captured, cdc_block_writes=True, cdc_total_space="4096MiB")


def test_a_moved_folder_loses_nothing(captured: Captured) -> None:
    """The segments that the agent did not read are in the earlier folder."""
    other = captured.node.folder / "moved"
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY) WITH cdc = true")
    with captured.agent():
        passes(captured)
        captured.write("INSERT INTO {ks}.t (k) VALUES (1)")
        restart(captured, cdc_raw_directory=str(other))
        captured.write("INSERT INTO {ks}.t (k) VALUES (2)")
        passes(captured)
    captured.write("INSERT INTO {ks}.t (k) VALUES (3)")
    restart(captured, signal.SIGKILL, cdc_raw_directory=str(captured.node.cdc_raw))
    captured.write("INSERT INTO {ks}.t (k) VALUES (4)")
    with captured.agent():
        passes(captured)
    assert not reasons(captured)
    captured.assert_same("t")


def test_a_folder_that_the_node_no_longer_uses_holds_the_watermark(captured: Captured) -> None:
    folder = captured.node.cdc_raw
    with captured.agent(cdc_raw=folder):
        captured.settle()
        passes(captured)
        captured.node.stop()
        stopped_at = time_now()
        restart(captured, cdc_raw_directory=str(captured.node.folder / "elsewhere"))
        try:
            wait_for(lambda: "the agent reads" in held(captured))
            assert until(captured, "marks") <= stopped_at
        finally:
            restart(captured, cdc_raw_directory=str(folder))
    is_closed_by_a_snapshot(captured)


def test_a_folder_of_copies_may_get_the_segments_of_a_start_later(captured: Captured) -> None:
    copies = captured.node.folder / f"{captured.keyspace}_copies"
    copies.mkdir()

    def copy() -> None:
        for path in sorted(captured.node.cdc_raw.iterdir()):
            (copies / path.name).write_bytes(path.read_bytes())

    copy()
    with captured.agent(cdc_raw=copies):
        passes(captured)
        captured.node.stop()
        stopped_at = time_now()
        captured.node.start()
        wait_for(lambda: "has no segment of the node's present start" in held(captured))
        assert until(captured, "marks") <= stopped_at
        copy()
        passes(captured)
    assert not reasons(captured)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_keyspace_that_is_not_durable_holds_only_its_tables(captured: Captured, restarts: bool) -> None:
    """`restarts`: it becomes durable while no agent runs."""
    other = f"{captured.keyspace}_o"
    try:
        with captured.agent():
            captured.write(f"CREATE KEYSPACE {other} WITH replication = {REPLICATION} AND durable_writes = false")
            captured.write(f"CREATE TABLE {other}.t (k int PRIMARY KEY) WITH cdc = true")
            wait_for(lambda: "durable_writes = false" in status_of(captured).get("held", {}).get(f"{other}.t", ""))
            passes(captured)
            if not restarts:
                captured.write(f"ALTER KEYSPACE {other} WITH durable_writes = true")
                wait_for(lambda: "(until 20" in reasons(captured))
        if restarts:
            captured.write(f"ALTER KEYSPACE {other} WITH durable_writes = true")
        with captured.agent():
            wait_for(lambda: "(until 20" in reasons(captured))
            (file,) = (captured.settings.capture.state_dir / "aside").glob("*.reason.json")
            file.unlink()
            wait_for(lambda: not status_of(captured).get("held"))
    finally:
        captured.write(f"DROP KEYSPACE {other}")


def test_a_running_agent_notices_another_host_id(captured: Captured) -> None:
    agent = captured.program()
    captured.settle()
    captured.node.stop()
    for name in ("data", "commitlog", "cdc_raw", "hints", "saved_caches"):
        shutil.rmtree(captured.node.folder / name, ignore_errors=True)
    captured.node.start()
    captured.write(f"CREATE KEYSPACE {{ks}} WITH replication = {REPLICATION}")
    assert agent.wait(300) == 1
    said = captured.log.read_text()
    assert "writetime retire" in said
    assert "writetime backfill" in said
    with pytest.raises(AssertionError, match="writetime retire"), captured.agent():
        pass


def test_verify_reports_writes_that_may_be_missing(
    captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.settings = with_lake(captured.settings, tmp_path / "lake")
    write_settings(captured.settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    name = f"{captured.keyspace}.marks"
    with captured.agent():
        passes(captured)
        Landing(captured.settings, name).drain()
        durable_off_and_on(captured)
        wait_for(lambda: "durable_writes = false" in held(captured))
    answer = CliRunner().invoke(main, ["verify", name, "--wait", "1"])
    assert answer.exit_code == 1
    assert f"{name}: writes may be missing in the lake" in answer.output
    assert "durable_writes = false" in answer.output
