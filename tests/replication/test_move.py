"""A move to another cluster while clients write, and everything is killed: docs/replication.md.

Oracle: the answers of both clusters, with write times, after the writes have stopped.
"""

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.replication.conftest import Clusters
from tests.support.captured import REPLICATION, captured_keyspace
from tests.support.format_server import FormatServer, KilledServer
from tests.support.programs import Program
from tests.support.published import command
from tests.support.settings import write_settings
from tests.support.waiting import wait_for
from writetime.clients.database import DRIVER_FAULTS
from writetime.core.config import Settings
from writetime.core.server_settings import NamedCluster
from writetime.lake.replica_positions import Positions
from writetime.lake.table import LakeTable, table_storage
from writetime.schema.system import read_schema

pytestmark = pytest.mark.long

_COLUMNS = """(k int, c int, d text, s text STATIC, v int, w text, m map<text, int>, e set<int>, f frozen<list<int>>,
 PRIMARY KEY (k, c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC) AND cdc = true"""
_SECONDS, _SECONDS_LONG = 25, 600
_RATE, _RATE_LONG = 100, 500
_KEYS = 200
_PAUSE_SECONDS = 4.0


def statement(table: str, chooser: random.Random) -> str:
    """Make a write of any kind at the time of its coordinator, or at a time of the client's."""
    k, c, d, n = chooser.randrange(_KEYS), chooser.randrange(6), chooser.choice("ab"), chooser.randrange(100)
    at = chooser.choice(["", f"USING TIMESTAMP {time.time_ns() // 1000 - chooser.randrange(3_000_000)}"])
    ttl = f"{at} AND TTL 500000" if at else "USING TTL 500000"
    row = f"k = {k} AND c = {c} AND d = '{d}'"
    return chooser.choice(
        [
            f"INSERT INTO {table} (k, c, d, v, w, f) VALUES ({k}, {c}, '{d}', {n}, 'w{n}', [{n}, 1]) {at}",
            f"INSERT INTO {table} (k, c, d, v, w) VALUES ({k}, {c}, '{d}', {n}, 'w{n}') {ttl}",
            f"INSERT INTO {table} (k, c, d, m, e) VALUES ({k}, {c}, '{d}', {{'a': {n}}}, {{{n}, 1}}) {at}",
            f"UPDATE {table} {ttl} SET v = {n}, m['x{n % 3}'] = {n} WHERE {row}",
            f"UPDATE {table} {at} SET e = e + {{{n}}}, w = null WHERE {row}",
            f"UPDATE {table} {at} SET s = 's{n}' WHERE k = {k}",
            f"DELETE v, m FROM {table} {at} WHERE {row}",
            f"DELETE m['a'] FROM {table} {at} WHERE {row}",
            f"DELETE FROM {table} {at} WHERE {row}",
            f"DELETE FROM {table} {at} WHERE k = {k} AND c > {c}",
            f"DELETE FROM {table} {at} WHERE k = {k} AND c >= {c} AND c < {c + 2}",
            *([f"DELETE FROM {table} {at} WHERE k = {k}"] if n == 0 else []),
        ]
    )


@contextmanager
def writing(node: FormatServer, table: str, rate: int, chooser: random.Random) -> Iterator[None]:
    """Write at a rate, also while the node is down: whether such a write took effect is for the node to decide."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(1 / rate):
            try:
                node.session().execute(statement(table, chooser), timeout=10)
            except (*DRIVER_FAULTS, RuntimeError, AttributeError):
                # The session is closed while the node is down.
                time.sleep(0.2)

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            yield
        finally:
            stop.set()
        working.result()


class New(KilledServer):
    """A node of the newest version of Cassandra, also with `--cassandra`."""

    is_newest = True


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[KilledServer, KilledServer]]:
    made = [
        kind(tmp_path / kind.__name__, "nb", commitlog_sync="batch", commitlog_segment_size="1MiB")
        for kind in (KilledServer, New)
    ]
    try:
        for node in made:
            node.start()
        yield made[0], made[1]
    finally:
        for node in made:
            node.stop()


def kill(node: KilledServer) -> None:
    node.stop(signal.SIGKILL)
    node.start()


@dataclass(frozen=True)
class Move:
    """A table that is captured and replicated by programs, which start again when they end."""

    settings: Settings
    name: str
    programs: dict[str, Program]


@pytest.fixture
def move(
    kafka: Settings, nodes: tuple[KilledServer, KilledServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Move]:
    old, new = nodes
    with captured_keyspace(old, kafka, tmp_path) as captured:
        new.write_one(f"CREATE KEYSPACE {captured.keyspace} WITH replication = {REPLICATION}")
        captured.write(f"CREATE TABLE {{ks}}.t {_COLUMNS}")
        settings = captured.settings.model_copy(
            update={
                "clusters": {"new": NamedCluster(port=new.port)},
                "lake": captured.settings.lake.model_copy(update={"path": str(tmp_path / "lake"), "buckets": 2}),
                "tables": {captured.keyspace: {"t": {"replicate_to": "new", "row_events": False}}},
            }
        )
        write_settings(settings, tmp_path / "writetime.toml")
        monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
        name = f"{captured.keyspace}.t"
        programs = {each: Program(tmp_path, each, each, *more) for each, *more in (("agent",), ("follow", name))}
        for program in programs.values():
            program.start()
        try:
            yield Move(settings, name, programs)
        finally:
            for program in programs.values():
                program.end()


def test_a_move_while_everything_is_killed(
    move: Move, nodes: tuple[KilledServer, KilledServer], tmp_path: Path, is_long: bool
) -> None:
    old, new = nodes
    chooser = random.Random(seed := random.randrange(10**6))
    with writing(old, move.name, _RATE_LONG if is_long else _RATE, chooser):
        wait_for(lambda: is_loaded(move.settings, move.name))
        end = time.monotonic() + (_SECONDS_LONG if is_long else _SECONDS)
        kills = [lambda: kill(old), lambda: kill(new), *(program.kill for program in move.programs.values())]
        while time.monotonic() < end:
            chooser.choice(kills)()
            time.sleep(chooser.random() * _PAUSE_SECONDS)
    stopped = time.monotonic()
    done = command("cutover", move.name, "--report", str(tmp_path / "report.json"))
    print(f"seed {seed}: equal {time.monotonic() - stopped:.1f} s after the last write")
    assert done.exit_code == 0, done.output
    Clusters(old, new).assert_same(read_schema(old.session(), move.name))
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["equal"]
    assert found["database_rows"] == found["against_rows"] > 0


def is_loaded(settings: Settings, name: str) -> bool:
    position = Positions(LakeTable(table_storage(settings, name)), "new").read()
    return position is not None and position.loaded is None
