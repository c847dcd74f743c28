"""A table is restored into three nodes, each of which gets and keeps the rows that it has replicas of."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.servers import ClusterNode, Servers, session_at
from tests.support.made import SCHEMA, add, write
from tests.support.settings import write_settings
from tests.support.waiting import PATIENCE_SECONDS, wait_for
from writetime.bulk_load.sstables import read_manifest
from writetime.core.errors import WritetimeError
from writetime.lake.table import create_table
from writetime.restore.into import restore_into
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable

pytestmark = pytest.mark.long

ROWS = 600


@pytest.mark.parametrize("copies", [2, 3])
def test_each_node_gets_its_replicas(servers: Servers, tmp_path: Path, copies: int) -> None:
    lake_settings = servers.settings.lake.model_copy(update={"path": str(tmp_path / "lake"), "buckets": 4})
    settings = servers.settings.model_copy(update={"lake": lake_settings})
    lake = create_table(settings, SCHEMA)
    add(lake, [write(i, 0, random.Random(i).randrange(10**9), v=f"v{i}") for i in range(ROWS)], 0)
    keyspace, folder = f"restored_{copies}", str(tmp_path / "out")
    with session_at(settings) as session:
        replication = f"{{'class': 'NetworkTopologyStrategy', 'datacenter1': {copies}}}"
        session.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    if copies == 3:
        down = servers.nodes[2]
        down.stop()
        with pytest.raises(WritetimeError, match=f"the node {down.address} does not answer: start it, and run this"):
            restore_into(settings, lake, folder, f"{keyspace}.items")
        servers.wait_for_all()
    report = restore_into(settings, lake, folder, f"{keyspace}.items")
    assert report.comparison is not None
    assert (report.comparison.rows, report.comparison.differing) == (ROWS, 0)
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.target is not None
    assert len(manifest.target.nodes) == 3
    held = 0
    for node in manifest.target.nodes.values():
        (server,) = (each for each in servers.nodes if each.address == node.address)
        tokens = _tokens_of(server, keyspace)
        assert all(any(r.first <= token <= r.last for r in node.ranges) for token in tokens)
        held += len(tokens)
    assert held == manifest.changes == copies * ROWS


def test_program_and_node_are_killed_during_the_import(servers: Servers, tmp_path: Path) -> None:
    lake = servers.settings.lake.model_copy(update={"path": str(tmp_path / "lake"), "buckets": 4})
    settings = servers.settings.model_copy(update={"lake": lake})
    add(create_table(settings, SCHEMA), [write(i, 0, i, v=f"v{i}") for i in range(ROWS)], 0)
    write_settings(settings, tmp_path / "writetime.toml")
    with session_at(settings) as session:
        session.execute(
            "CREATE KEYSPACE killed WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"
        )
    out, environment = tmp_path / "out", {**os.environ, "WRITETIME_CONFIG": str(tmp_path / "writetime.toml")}
    arguments = ["restore", SCHEMA.full_name, "--to", str(out), "--into", "killed.items"]

    def started() -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "writetime", *arguments]
        return subprocess.Popen(program, env=environment, stderr=subprocess.PIPE, text=True)

    for victim in (None, servers.nodes[2]):
        running = started()
        wait_for(lambda r=running: r.poll() is not None or any(out.glob("importing-*")))
        if victim is None:
            running.kill()
        else:
            victim.stop(signal.SIGKILL)
        _, said = running.communicate(timeout=PATIENCE_SECONDS)
        assert "Traceback" not in said
        servers.wait_for_all()
    done = started()
    _, said = done.communicate(timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, said
    assert f"{ROWS} rows in the lake; 0 differ" in said
    assert all(len(set(_tokens_of(server, "killed"))) == ROWS for server in servers.nodes)


def _tokens_of(server: ClusterNode, keyspace: str) -> list[int]:
    """The tokens of the rows in the SSTables of a node."""
    (folder,) = (server.folder / "data" / keyspace).glob("items-*")
    batches = [batch for location in find_sstables(str(folder)) for batch in SSTable(location, SCHEMA).scan()]
    return [token for batch in batches for token in batch["token"].to_pylist()]
