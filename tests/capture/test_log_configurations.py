"""Configurations of a node and its commit log: writes reach the lake, or their watermark waits."""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.capture.agents import held, passes, restart, until
from tests.support.captured import Captured, captured_keyspace
from tests.support.format_server import FormatServer
from tests.support.loader import stream
from tests.support.waiting import wait_for
from writetime.core.config import Settings
from writetime.lake.views import time_now
from writetime.runtime.java import java
from writetime.storage.segment import list_segments

pytestmark = pytest.mark.long

_LZ4 = [{"class_name": "LZ4Compressor"}]


@pytest.fixture
def captured(own_node: FormatServer, kafka: Settings, tmp_path: Path) -> Iterator[Captured]:
    """A captured keyspace of that node."""
    with captured_keyspace(own_node, kafka, tmp_path) as made:
        yield made


def is_in_an_index(captured: Captured) -> bool:
    """Whether the node has synced a write to a captured table in a segment that it still writes to."""
    indexes = [segment.cdc_index() for segment in list_segments(str(captured.node.cdc_raw))[0]]
    return any(index is not None and not index.completed and index.offset for index in indexes)


def sstables(captured: Captured, table: str) -> list[Path]:
    """The SSTables of a table; none while the node may still undo the flush."""
    (folder,) = (captured.node.folder / "data" / captured.keyspace).glob(f"{table}-*")
    return [] if list(folder.glob("*_txn_*.log")) else list(folder.glob("*-TOC.txt"))


@pytest.mark.parametrize("has_synced_write", [False, True])
def test_a_crash_between_a_flush_and_the_next_sync_holds_the_watermark(
    captured: Captured, *, has_synced_write: bool
) -> None:
    """The database has the write in an SSTable, and the log does not."""
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY) WITH cdc = true AND memtable_flush_period_in_ms = 500")
    with captured.agent():
        captured.settle()
        passes(captured)
        before = time_now()
        period = "30000ms" if has_synced_write else "600000ms"
        restart(captured, commitlog_sync="periodic", commitlog_sync_period=period, commitlog_compression=_LZ4)
        if has_synced_write:
            captured.write("INSERT INTO {ks}.marks (id) VALUES (-6)")
            wait_for(lambda: is_in_an_index(captured))
        captured.write("INSERT INTO {ks}.t (k) VALUES (1)")
        wait_for(lambda: sstables(captured, "t"))
        restart(captured, signal.SIGKILL, commitlog_sync="batch", commitlog_sync_period=None)
        assert captured.count("SELECT count(*) FROM {ks}.t") == 1
        wait_for(lambda: "crashed before it synced" in held(captured, "t"))
        captured.settle()
        assert not captured.changes("t").num_rows
        assert until(captured, "t") <= before + 60_000_000
    with captured.agent(snapshot="always"):
        passes(captured, "t")
        assert not held(captured, "t")
    captured.assert_same("t")


def flushed(captured: Captured, table: str) -> list[Path]:
    """The files of a table's SSTables."""
    captured.node.nodetool("flush", captured.keyspace, table)
    (folder,) = (captured.node.folder / "data" / captured.keyspace).glob(f"{table}-*")
    return [path for path in folder.iterdir() if path.is_file()]


# A file that is moved within 50 ms after it was written seems to be written where it is (`unlogged_files`). Only a test
# on an idle machine is so quick.
_AGE_SECONDS = 0.2


def imported(captured: Captured, files: list[Path], home: Path) -> None:
    folder = home / captured.keyspace / "t"
    folder.mkdir(parents=True)
    for file in files:
        shutil.copy(file, folder)
    time.sleep(_AGE_SECONDS)
    captured.node.nodetool("import", captured.keyspace, "t", str(folder))


def refreshed(captured: Captured, files: list[Path], home: Path) -> None:
    del home
    (folder,) = (captured.node.folder / "data" / captured.keyspace).glob("t-*")
    for file in files:
        shutil.copy(file, folder / file.name.replace("-1-", "-9-"))
    time.sleep(_AGE_SECONDS)
    captured.node.nodetool("refresh", captured.keyspace, "t")


@pytest.mark.parametrize("load", [imported, refreshed])
def test_sstables_that_are_loaded_hold_the_watermark_of_their_table(
    captured: Captured, tmp_path: Path, load: Callable[[Captured, list[Path], Path], None]
) -> None:
    captured.write("CREATE TABLE {ks}.other (k int PRIMARY KEY, v int)")
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY, v int) WITH cdc = true")
    captured.write("INSERT INTO {ks}.other (k, v) VALUES (1, 1)", "INSERT INTO {ks}.t (k, v) VALUES (2, 2)")
    files = flushed(captured, "other")
    with captured.agent():
        captured.settle()
        passes(captured, "t")
        # A flush and a compaction are no import.
        flushed(captured, "t")
        captured.write("INSERT INTO {ks}.t (k, v) VALUES (3, 3)")
        flushed(captured, "t")
        captured.node.nodetool("compact", captured.keyspace, "t")
        passes(captured, "t")
        assert not held(captured, "t")
        load(captured, files, tmp_path)
        assert captured.count("SELECT count(*) FROM {ks}.t WHERE k = 1") == 1
        wait_for(lambda: "nodetool import or refresh" in held(captured, "t"))
        passes(captured)
    with captured.agent(snapshot="always"):
        passes(captured, "t")
        assert not held(captured, "t")
    captured.assert_same("t")


def streamed(captured: Captured, files: list[Path], home: Path, version: str) -> None:
    """Load files of SSTables with sstableloader."""
    folder = home / captured.keyspace / "t"
    folder.mkdir(parents=True)
    for file in files:
        shutil.copy(file, folder)
    stream(folder, captured.node.folder, captured.node.port, version)


@pytest.mark.parametrize(
    "is_logged",
    [True, pytest.param(False, marks=pytest.mark.from_cassandra_5("others log all streams of captured tables"))],
)
def test_streams_that_are_not_logged_hold_the_watermark(
    captured: Captured, tmp_path: Path, cassandra_version: str, *, is_logged: bool
) -> None:
    captured.write("CREATE TABLE {ks}.other (k int PRIMARY KEY, v int)")
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY, v int) WITH cdc = true")
    captured.write("INSERT INTO {ks}.other (k, v) VALUES (1, 1)")
    files = flushed(captured, "other")
    if not is_logged:
        restart(captured, cdc_on_repair_enabled=False)
    with captured.agent():
        captured.settle()
        passes(captured, "t")
        streamed(captured, files, tmp_path, cassandra_version)
        assert captured.count("SELECT count(*) FROM {ks}.t") == 1
        if is_logged:
            passes(captured, "t")
            captured.assert_same("t")
        else:
            wait_for(lambda: "sstableloader" in held(captured, "t"))
            restart(captured, cdc_on_repair_enabled=None)
            # A node writes no TOC for an SSTable that it received as a whole.
            assert not list(captured.node.folder.glob(f"data/{captured.keyspace}/t-*/*-TOC.txt"))
    with captured.agent(snapshot="always"):
        passes(captured, "t")
        assert not held(captured, "t")
    captured.assert_same("t")


def encryption(home: Path) -> dict[str, Any]:
    """Encryption of the commit log, with a key that is made for it."""
    store = {"keystore": str(home / "keys.jceks"), "store_type": "JCEKS", "keystore_password": "secret"}
    options = ["-keystore", store["keystore"], "-storetype", "jceks", "-storepass", "secret", "-keypass", "secret"]
    key = ["-genseckey", "-keyalg", "AES", "-keysize", "128", "-alias", "one"]
    subprocess.run([str(java()), "-m", "java.base/sun.security.tools.keytool.Main", *key, *options], check=True)
    provider = {"class_name": "org.apache.cassandra.security.JKSKeyProvider", "parameters": [store]}
    return {"enabled": True, "key_alias": "one", "key_provider": [provider]}


def test_encrypted_segments_hold_the_watermark(captured: Captured, tmp_path: Path) -> None:
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY) WITH cdc = true")
    with captured.agent():
        captured.settle()
        passes(captured, "t")
        restart(captured, transparent_data_encryption_options=encryption(tmp_path))
        before = time_now()
        captured.write("INSERT INTO {ks}.t (k) VALUES (1)")
        wait_for(lambda: "encrypted segments are not supported" in held(captured, "t"))
        captured.fill(1)
        restart(captured, transparent_data_encryption_options=None)
        captured.settle()
        assert "run the node without transparent_data_encryption_options" in held(captured, "t")
        assert until(captured, "t") <= before
    # No crash is blamed for the data of encrypted segments.
    aside = captured.settings.capture.state_dir / "aside"
    assert {path.name.partition("-")[0] for path in aside.glob("*.reason.json")} == {"CommitLog"}
    with captured.agent(snapshot="always"):
        passes(captured, "t")
        assert not held(captured, "t")
    captured.assert_same("t")


_TABLES = (
    "CREATE TABLE {ks}.t (k int PRIMARY KEY, v int) WITH cdc = true",
    "CREATE TABLE {ks}.c (k int PRIMARY KEY, n counter) WITH cdc = true",
    "CREATE MATERIALIZED VIEW {ks}.by_v AS SELECT * FROM {ks}.t WHERE v IS NOT NULL AND k IS NOT NULL "
    "PRIMARY KEY (v, k)",
)
_WRITES = (
    "INSERT INTO {ks}.t (k, v) VALUES (1, 1)",
    "INSERT INTO {ks}.t (k, v) VALUES (2, 2) IF NOT EXISTS",
    "UPDATE {ks}.t SET v = 3 WHERE k = 2 IF v = 2",
    "BEGIN BATCH INSERT INTO {ks}.t (k, v) VALUES (3, 3); INSERT INTO {ks}.t (k, v) VALUES (4, 4); "
    "DELETE FROM {ks}.t WHERE k = 1; APPLY BATCH",
    "BEGIN UNLOGGED BATCH INSERT INTO {ks}.t (k, v) VALUES (5, 5) APPLY BATCH",
    "INSERT INTO {ks}.t (k, v) VALUES (6, 6) USING TTL 1000000 AND TIMESTAMP 1",
    "UPDATE {ks}.c SET n = n + 1 WHERE k = 1",
    "BEGIN COUNTER BATCH UPDATE {ks}.c SET n = n + 1 WHERE k = 1; UPDATE {ks}.c SET n = n + 2 WHERE k = 2; APPLY BATCH",
)
_TRIES = {"default": {"class_name": "TrieMemtable"}}


def with_a_link(captured: Captured) -> dict[str, Any]:
    """`cdc_raw_directory` is a symbolic link."""
    link = captured.node.folder / f"link-{captured.keyspace}"
    link.symlink_to(captured.node.cdc_raw)
    return {"cdc_raw_directory": str(link)}


_LONG = pytest.mark.long_only("one configuration is enough for each run, because a node restarts three times for each")


@pytest.mark.parametrize(
    "settings",
    [
        {"commitlog_compression": _LZ4},
        pytest.param({"commit_failure_policy": "ignore", "disk_failure_policy": "ignore"}, marks=_LONG),
        pytest.param(with_a_link, marks=_LONG),
        pytest.param(
            {"memtable": {"configurations": _TRIES}},
            marks=[_LONG, pytest.mark.from_cassandra_5("others have no tries")],
        ),
        pytest.param(
            {"commitlog_disk_access_mode": "direct"},
            marks=[_LONG, pytest.mark.from_cassandra_5("others have no such setting")],
        ),
        pytest.param(
            {"commitlog_sync": "group", "commitlog_sync_group_window": "10ms"},
            marks=[_LONG, pytest.mark.from_cassandra_5("others have another name for it")],
        ),
    ],
    ids=["compressed", "failures ignored", "link", "tries", "direct", "group"],
)
def test_all_writes_reach_the_log(
    captured: Captured, settings: dict[str, Any] | Callable[[Captured], dict[str, Any]]
) -> None:
    """Of each kind, also those of memtables that are flushed before and after a crash."""
    chosen = settings(captured) if callable(settings) else settings
    folder = captured.node.cdc_raw
    restart(captured, **chosen)
    try:
        captured.write(*_TABLES)
        with captured.agent():
            captured.settle()
            captured.write(*_WRITES)
            passes(captured, "t")
            restart(captured, signal.SIGKILL)
            captured.write(*_WRITES)
            passes(captured, "t")
        captured.assert_same("t", "c")
        assert not list((captured.settings.capture.state_dir / "aside").glob("*"))
    finally:
        defaults: dict[str, Any] = dict.fromkeys(chosen)
        defaults |= {"commitlog_sync": "batch", "cdc_raw_directory": str(folder)}
        restart(captured, **defaults)
