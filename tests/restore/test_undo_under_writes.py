"""A captured table is undone while good writes go on, and the command is killed. Oracle: a second table, which got the
same writes at the same times, without the bad ones.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest
from cassandra.cluster import Session

from tests.restore.conftest import Platform, wait_for
from tests.support.published import command
from tests.support.repeated import repeated
from tests.support.servers import server_addresses, start
from writetime.clients.database import DRIVER_FAULTS, connect, is_without_answer
from writetime.core.config import Settings
from writetime.lake.horizon import captured_until
from writetime.lake.table import is_in_lake, open_table

pytestmark = pytest.mark.long

_COLUMNS = "(k int, c int, s text STATIC, v int, m map<text, int>, e set<int>, PRIMARY KEY (k, c))"
_KEYS, _FIRST_BAD, _REPAIRED = 40, 20, 30
_BAD = [
    "DELETE FROM {t} USING TIMESTAMP {at} WHERE k = {k}",
    "DELETE FROM {t} USING TIMESTAMP {at} WHERE k = {k} AND c > 1",
    "DELETE m, v FROM {t} USING TIMESTAMP {at} WHERE k = {k} AND c = {c}",
    "INSERT INTO {t} (k, c, s, v, m) VALUES ({k}, {c}, 'bad', -1, {{'bad': -1}}) USING TIMESTAMP {at}",
]
_GOOD = [
    "INSERT INTO {t} (k, c, s, v) VALUES ({k}, {c}, 's{n}', {n}) USING TIMESTAMP {at}",
    "UPDATE {t} USING TIMESTAMP {at} AND TTL 86400 SET m['x{n}'] = {n}, e = e + {{{n}}} WHERE k = {k} AND c = {c}",
    "DELETE m['x{n}'] FROM {t} USING TIMESTAMP {at} WHERE k = {k} AND c = {c}",
    "DELETE FROM {t} USING TIMESTAMP {at} WHERE k = {k} AND c = {c}",
]


def _execute(session: Session, statement: str) -> None:
    """Execute a statement with a write time of its own, until a busy node answers: both tables need it."""
    while True:
        try:
            session.execute(statement)
        except DRIVER_FAULTS as e:
            if not is_without_answer(e):
                raise
        else:
            return


def _write(session: Session, chooser: random.Random, texts: Sequence[str], keys: range, tables: Sequence[str]) -> None:
    """Write one statement to each of some tables, at one write time."""
    values = {"k": chooser.choice(keys), "c": chooser.randrange(4), "n": chooser.randrange(5)}
    text, at = chooser.choice(texts), time.time_ns() // 1000
    for table in tables:
        _execute(session, text.format(t=table, at=at, **values))


@pytest.fixture(scope="module")
def cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A node of its own. The one that tests share logs writes to tables that they drop, which hold all watermarks."""
    with server_addresses(tmp_path_factory.mktemp("node")) as settings:
        start(settings, "cassandra")
        yield settings


class _Writers:
    """Writes good statements to both tables, and bad ones to the first, each at the present time."""

    def __init__(self, platform: Platform, seed: int) -> None:
        self._platform, self._chooser = platform, random.Random(seed)
        self.damaged, self.wanted = (f"{platform.keyspace}.undone{n}_{seed}" for n in (1, 2))
        platform.write(
            f"CREATE TABLE {self.damaged} {_COLUMNS} WITH cdc = true", f"CREATE TABLE {self.wanted} {_COLUMNS}"
        )

    def write(self, texts: list[str], keys: range, count: int, *tables: str) -> None:
        """Write so many statements to some keys."""
        with connect(self._platform.settings) as session:
            for _ in range(count):
                _write(session, self._chooser, texts, keys, tables)

    @contextmanager
    def good(self, keys: range) -> Iterator[None]:
        """Go on with good writes to some keys during the block."""
        chooser = random.Random(self._chooser.random())
        with connect(self._platform.settings) as session:
            work = partial(_write, session, chooser, _GOOD, keys, (self.damaged, self.wanted))
            with repeated(work, 0.005):
                yield

    def land_until(self, instant: int) -> None:
        """Land until the lake has all writes up to a time."""

        def has_landed() -> bool:
            # Without new changes, a watermark is committed every five minutes only.
            self.write(_GOOD, range(_FIRST_BAD), 1, self.damaged, self.wanted)
            command("land", self.damaged)
            settings = self._platform.settings
            return is_in_lake(settings, self.damaged) and (
                captured_until(open_table(settings, self.damaged).changes.load()) > instant
            )

        wait_for(has_landed)

    def answers(self, table: str) -> list[tuple[object, ...]]:
        """The rows, with the write times of the cells that have one."""
        with connect(self._platform.settings) as session:
            found = session.execute(f"SELECT k, c, s, v, m, e, writetime(s), writetime(v), ttl(v) FROM {table}")
            return [tuple(row) for row in found]


@pytest.mark.parametrize("seed", range(2))
def test_undone_while_good_writes_go_on(platform: Platform, seed: int) -> None:
    writers = _Writers(platform, seed)
    with platform.agent():
        writers.write(_GOOD, range(_KEYS), 400, writers.damaged, writers.wanted)
        # The history of the lake begins.
        writers.land_until(time.time_ns() // 1000)
        first = time.time_ns() // 1000
        with writers.good(range(_FIRST_BAD)):
            time.sleep(0.01)
            writers.write(_BAD, range(_FIRST_BAD, _KEYS), 60, writers.damaged)
            last = time.time_ns() // 1000
        # The program is repaired, and writes good data to some of the damaged keys.
        with writers.good(range(_REPAIRED)):
            writers.land_until(last + 200_000)
            interval = ["--from", str(first), "--to", str(last), "--where", f"k >= {_FIRST_BAD}"]
            planned = command("undo", writers.damaged, *interval)
            assert planned.exit_code == 0, planned.output
            plan_id = planned.stdout.rpartition(" ")[2].strip()
            apply = [sys.executable, "-m", "writetime", "undo", writers.damaged, "--apply", plan_id]
            for seconds in (1.5, 2.5):
                process = subprocess.Popen([*apply, "--rate", "10"], env=os.environ)
                time.sleep(seconds)
                process.send_signal(signal.SIGKILL)
                process.wait()
            assert subprocess.run(apply, env=os.environ, check=False).returncode == 0
        write_time = int(command("undo", writers.damaged, "--apply", plan_id).stderr.rpartition(" ")[2])
        found, wanted = writers.answers(writers.damaged), writers.answers(writers.wanted)
        assert [row[:6] for row in found] == [row[:6] for row in wanted]
        for one, other in zip(found, wanted, strict=True):
            assert all(a in (b, write_time) for a, b in zip(one[6:8], other[6:8], strict=True))
        assert any(write_time in row for row in found)
        # The undo is captured like all writes.
        platform.land(writers.damaged)
