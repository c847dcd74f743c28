"""A move of a table to another cluster while clients write, and everything is killed."""

import json
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cassandra import InvalidRequest

from tests.support.captured import Captured
from tests.support.format_server import FormatServer, KilledServer
from tests.support.programs import Program
from tests.support.published import command
from tests.support.repeated import repeated
from tests.support.settings import write_settings
from tests.support.waiting import wait_for
from writetime.clients.database import DRIVER_FAULTS
from writetime.core.config import Settings
from writetime.core.server_settings import NamedCluster
from writetime.lake.replica_positions import Positions
from writetime.lake.table import LakeTable, table_storage

_COLUMNS = """k int, c int, d text, s text STATIC, v int, w text, m map<text, int>, e set<int>, f frozen<list<int>>,
 PRIMARY KEY (k, c, d)"""
_OPTIONS = "CLUSTERING ORDER BY (c DESC, d ASC) AND cdc = true"
_SECONDS, _SECONDS_LONG = 25, 600
_RATE, _RATE_LONG = 100, 500
# Partitions that are written to all the time; and others, which are written to for some seconds only.
_KEYS, _KEYS_NOW, _NOW_SECONDS = 200, 20, 5
# The longest pause between kills: a node needs seconds to start, and must also work.
_PAUSE_SECONDS, _PAUSE_SECONDS_LONG = 4.0, 20.0
# Each waits for its answers.
_WRITERS = 8


@dataclass(frozen=True)
class Move:
    """A table that is captured and replicated to the cluster `new` by programs, which start again when they end."""

    settings: Settings
    name: str
    programs: dict[str, Program]
    has_list: bool
    home: Path

    def statement(self, chooser: random.Random) -> str:
        """Make a write of any kind at the time of its coordinator, or at a time of the client's."""
        table, k, c, d, n = self.name, *_chosen(chooser), chooser.randrange(100)
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
                *(_of_list(table, n, at, ttl, row) if self.has_list else []),
            ]
        )

    def is_loaded(self) -> bool:
        position = Positions(LakeTable(table_storage(self.settings, self.name)), "new").read()
        return position is not None and position.loaded is None

    def run(self, old: FormatServer, kills: Sequence[Callable[[], object]], *, is_long: bool) -> random.Random:
        """Write to the old cluster, while programs are killed, and all that `kills` end; then wait until both clusters
        are equal, by `writetime cutover`. Return what chose all this, by the seed that is printed.
        """
        chooser = random.Random(seed := random.randrange(10**6))
        counts = [0] * len(every := [*kills, *(program.kill for program in self.programs.values())])
        with self._writing(old, _RATE_LONG if is_long else _RATE, chooser) as written:
            wait_for(self.is_loaded)
            end = time.monotonic() + (_SECONDS_LONG if is_long else _SECONDS)
            while time.monotonic() < end:
                number = chooser.randrange(len(every))
                every[number]()
                counts[number] += 1
                time.sleep(chooser.random() * (_PAUSE_SECONDS_LONG if is_long else _PAUSE_SECONDS))
        stopped, report = time.monotonic(), self.home / "report.json"
        done = command("cutover", self.name, "--report", str(report))
        took = time.monotonic() - stopped
        print(f"seed {seed}: {len(written)} writes, kills {counts}, equal {took:.1f} s after the last write")
        assert done.exit_code == 0, done.output
        found = json.loads(report.read_text())
        assert found["equal"]
        assert found["database_rows"] == found["against_rows"] > 0
        return chooser

    @contextmanager
    def _writing(self, node: FormatServer, rate: int, chooser: random.Random) -> Iterator[list[None]]:
        """Write at a rate, also while the node is down: whether such a write took effect is for the node to decide.
        Yield a list with an item for each write that it has answered.
        """
        written = list[None]()

        def write() -> None:
            try:
                node.session().execute(self.statement(chooser), timeout=10)
                written.append(None)
            except InvalidRequest:
                # The list has no first element.
                return
            except (*DRIVER_FAULTS, RuntimeError, AttributeError):
                # The session is closed while the node is down.
                time.sleep(0.2)

        with repeated(write, _WRITERS / rate, _WRITERS):
            yield written


def kill(node: KilledServer) -> None:
    """Kill a node, and start it."""
    node.stop(signal.SIGKILL)
    node.start()


@contextmanager
def moving(
    captured: Captured, new: NamedCluster, home: Path, monkeypatch: pytest.MonkeyPatch, *, has_list: bool = False
) -> Iterator[Move]:
    """Create a table, and let programs capture and replicate it to another cluster, which has its keyspace."""
    columns = f"l list<int>, {_COLUMNS}" if has_list else _COLUMNS
    captured.write(f"CREATE TABLE {{ks}}.t ({columns}) WITH {_OPTIONS}")
    settings = captured.settings.model_copy(
        update={
            "clusters": {"new": new},
            "lake": captured.settings.lake.model_copy(update={"path": str(home / "lake"), "buckets": 2}),
            "tables": {captured.keyspace: {"t": {"replicate_to": "new", "row_events": False}}},
        }
    )
    write_settings(settings, home / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(home / "writetime.toml"))
    name = f"{captured.keyspace}.t"
    programs = {each: Program(home, each, each, *more) for each, *more in (("agent",), ("follow", name))}
    for program in programs.values():
        program.start()
    try:
        yield Move(settings, name, programs, has_list, home)
    finally:
        for program in programs.values():
            program.end()


def _chosen(chooser: random.Random) -> tuple[int, int, str]:
    """Choose the keys of a row. A lost write to a partition that is written to all the time soon leaves no trace: a
    later deletion covers it.
    """
    k = chooser.randrange(_KEYS)
    if chooser.random() < 0.5:
        k = _KEYS + int(time.time()) // _NOW_SECONDS % 10**8 * _KEYS_NOW + k % _KEYS_NOW
    return k, chooser.randrange(6), chooser.choice("ab")


def _of_list(table: str, n: int, at: str, ttl: str, row: str) -> list[str]:
    return [
        f"UPDATE {table} {ttl} SET l = [{n}, 1] WHERE {row}",
        f"UPDATE {table} {ttl} SET l = l + [{n}] WHERE {row}",
        f"UPDATE {table} {at} SET l = [{n}] + l WHERE {row}",
        f"UPDATE {table} {at} SET l[0] = {n} WHERE {row}",
        f"UPDATE {table} {at} SET l = l - [1] WHERE {row}",
        f"DELETE l[0] FROM {table} {at} WHERE {row}",
    ]
