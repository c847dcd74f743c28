"""The tutorial for ScyllaDB, run command by command as a user would."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.documents import SCYLLA_TUTORIAL, blocks
from tests.support.running import Folder
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.servers.process import free_port


def test_tutorial(
    server_settings: Settings, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodetool, data = (request.config.getoption(f"--scylla-{name}") for name in ("nodetool", "data"))
    if nodetool and "," in nodetool:
        # The tutorial's rows have one replica, on any of several nodes.
        nodetool = None
    cassandra = server_settings.cassandra
    own = {
        "CASSANDRA__CONTACT_POINTS": json.dumps(cassandra.contact_points),
        "CASSANDRA__PORT": str(cassandra.port),
        "CASSANDRA__LOCAL_DATACENTER": cassandra.local_datacenter,
        "CASSANDRA__REPLICATION": json.dumps(cassandra.replication),
        "CASSANDRA__KEYSPACE": "tutorial",
        "CASSANDRA__REQUEST_TIMEOUT_SECONDS": str(cassandra.request_timeout_seconds),
        "KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
        "ZOOKEEPER__HOSTS": f"127.0.0.1:{free_port()}",
        "EMBEDDED__KAFKA_CONTROLLER_PORT": str(free_port()),
    }
    for name, value in own.items():
        monkeypatch.setenv(f"WRITETIME_{name}", value)
    monkeypatch.delenv("WRITETIME_CONFIG")
    programs = tmp_path / "bin"
    programs.mkdir()
    if nodetool:
        (programs / "nodetool").write_text(f'#!/bin/sh\nexec {nodetool} "$@"\n')
        (programs / "nodetool").chmod(0o755)
        monkeypatch.setenv("PATH", str(programs), prepend=":")
    replaced = {"/var/lib/scylla/data": shlex.quote(data or "")}
    folder = Folder(tmp_path / "clone", free_port(), {"snapshot": "none"}, replaced)
    monkeypatch.chdir(tmp_path / "clone")
    _clean(server_settings, nodetool)
    try:
        for block in blocks(SCYLLA_TUTORIAL):
            # The snapshot is taken by a program of the node, which is not always at hand.
            if nodetool or not ("nodetool snapshot" in block.text or "backfill" in block.text):
                folder.run(block)
    finally:
        folder.end()
        _clean(server_settings, nodetool)


def _clean(settings: Settings, nodetool: str | None) -> None:
    """Drop the keyspaces of the tutorial and the snapshot that it takes.

    A snapshot outlives its table, and the next run would find it beside its own. nodetool deletes snapshots of dropped
    tables, too, but only of keyspaces that are there.
    """
    replication = json.dumps(settings.cassandra.replication).replace('"', "'")
    with connect(settings) as session:
        session.execute(f"CREATE KEYSPACE IF NOT EXISTS bakery WITH replication = {replication}", timeout=60)
        if nodetool:
            done = subprocess.run(
                [*shlex.split(nodetool), "clearsnapshot", "-t", "first", "bakery"],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert done.returncode == 0, f"{' '.join(done.args)}: {done.stdout}{done.stderr}"
        for keyspace in ("bakery", "tutorial"):
            session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=60)
