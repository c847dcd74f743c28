"""The node is killed at random moments of a restore: the command names it and the remedy, and goes on when the node
runs again.

Oracle: the answers of the original table.
"""

import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest
from cassandra.concurrent import execute_concurrent

from tests.support.captured import REPLICATION
from tests.support.chosen_seconds import ProtocolAt
from tests.support.format_server import FormatServer, KilledServer
from tests.support.history import add_snapshot
from tests.support.servers import running
from tests.support.settings import write_settings
from tests.support.timed_writes import Answers
from tests.support.waiting import PATIENCE_SECONDS
from writetime.clients.node_snapshots import take_snapshot
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.waiting import wait_until
from writetime.lake.table import create_table
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema

pytestmark = pytest.mark.long

KEYSPACE = "killed"
PARTITIONS = 3000
BUCKETS = 64
KILLS, KILLS_LONG = 2, 10


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormatServer]:
    """A node of its own."""
    with running(KilledServer(tmp_path_factory.mktemp("node"), "nb", commitlog_sync="batch")) as server:
        yield server


@pytest.fixture(scope="module")
def own(node: FormatServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings for the node and a lake of many buckets, each of which becomes an SSTable; for programs, too."""
    home = tmp_path_factory.mktemp("lake")
    settings = config.load(
        cassandra={"port": node.port, "keyspace": KEYSPACE}, lake={"path": str(home / "lake"), "buckets": BUCKETS}
    )
    write_settings(settings, home / "writetime.toml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WRITETIME_CONFIG", str(home / "writetime.toml"))
        yield settings


def answers(node: FormatServer, schema: TableSchema, second: int) -> Answers:
    """The answers of a table as of a second."""
    session = node.session().cluster.connect()
    session.client_protocol_handler = ProtocolAt
    session.default_timeout = 60
    return Answers.at(session, schema, second, of_parts=False)


@pytest.fixture(scope="module")
def original(node: FormatServer, own: Settings) -> TableSchema:
    """Write to a table, and bring it into the lake."""
    columns = "(k int, c int, v text, m map<int, text>, PRIMARY KEY (k, c))"
    node.write_one(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {REPLICATION}")
    node.write_one(f"CREATE TABLE {KEYSPACE}.original {columns}")
    insert = node.session().prepare(
        f"INSERT INTO {KEYSPACE}.original (k, c, v, m) VALUES (?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
    )
    delete = node.session().prepare(f"DELETE FROM {KEYSPACE}.original USING TIMESTAMP ? WHERE k = ? AND c < ?")
    chooser = random.Random(1)
    writes = [
        (insert, (k, c, "v" * chooser.randrange(200), {c: "w"}, chooser.randrange(10**9), chooser.choice([0, 10**6])))
        for k in range(PARTITIONS)
        for c in range(3)
    ]
    writes += [(delete, (chooser.randrange(10**9), k, 2)) for k in range(0, PARTITIONS, 3)]
    assert all(success for success, _ in execute_concurrent(node.session(), writes))
    schema = read_schema(node.session(), f"{KEYSPACE}.original")
    add_snapshot(create_table(own, schema), take_snapshot(own, schema.full_name, "filled"), 0)
    return schema


def killed(program: list[str], folder: Path, node: FormatServer, *, in_import: bool, chooser: random.Random) -> str:
    """Run a restore, and kill the node a moment after the import begins, or after the program begins; return what the
    program said, or nothing if it ended before.
    """
    running = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def imports() -> bool:
        return running.poll() is not None or any(folder.glob("importing-*"))

    if in_import:
        assert wait_until(imports, PATIENCE_SECONDS, 0.01)
    time.sleep(chooser.uniform(0, 3 if in_import else 8))
    node.stop(SIGKILL)
    _, said = running.communicate(timeout=PATIENCE_SECONDS)
    return said if running.returncode else ""


def assert_one_sentence(said: str) -> None:
    """The last line names the node, and the remedy."""
    assert "Traceback" not in said, said
    error = said.strip().splitlines()[-1]
    assert error.startswith("Error: "), said
    assert "127.0.0.1" in error, said
    assert re.search(r"(start .*|run) (this|the command) again|start the embedded servers", error), said


@pytest.mark.parametrize("in_import", [True, False])
def test_a_node_that_is_killed(
    node: FormatServer, original: TableSchema, tmp_path: Path, is_long: bool, in_import: bool
) -> None:
    second = int(time.time()) + 1000
    wanted = answers(node, original, second)
    seed = random.randrange(10**6)
    chooser = random.Random(seed)
    found = []
    for number in range(KILLS_LONG if is_long else KILLS):
        name = f"copy{int(in_import)}_{number}"
        out = tmp_path / name
        arguments = ["restore", original.full_name, "--to", str(out), "--into", f"{KEYSPACE}.{name}"]
        program = [sys.executable, "-m", "writetime", *arguments]
        said = killed(program, out, node, in_import=in_import, chooser=chooser)
        node.start()
        print(f"seed {seed}, kill {number}: {said}")
        if said:
            assert_one_sentence(said)
            found.append(said)
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        if "does not exist" in done.stderr:
            # The node was killed while it created the table: it reads its schemas before it replays its commit log.
            node.stop()
            node.start()
            done = subprocess.run(program, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answers(node, replace(original, name=name), second).assert_same(wanted)
    assert found
    assert not in_import or any("the node 127.0.0.1 stopped during the import: start it" in said for said in found)
