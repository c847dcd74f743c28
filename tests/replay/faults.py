"""The faults, and the checker: publishers, subscribers and retention are killed and stopped, ZooKeeper's data is lost,
servers are restarted, and two instances run without knowledge of each other.

`python -m tests.replay.faults --runs 20 --seed 1` makes many runs on separate servers.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from tests.replay import process
from tests.replay.process import THE_END, items_of
from tests.support.servers import kill
from tests.support.settings import write_settings
from tests.support.waiting import PATIENCE_SECONDS
from writetime import servers
from writetime.clients import database
from writetime.core import config, waiting
from writetime.core.config import Settings
from writetime.replay import Publisher, check, extent, lag, replay, trim
from writetime.replay.batches import Batches, Seal
from writetime.servers.process import EmbeddedServer, free_port

PRODUCERS = ("a", "b")
SEQUENCES = 12
_EXPIRED_SECONDS = 4.0
PUBLISHING = ("blocks", "seal", "record", "advance")
WORKING = ("advance", "read", "move", "copy")
TRIMMING = ("announce", "delete", "deleted")
# A server that has done all imports forks the processes, because imports take longer than their work.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["__main__", "tests.replay.process"])


class Run:
    """One run: producers publish, processors work, and something happens to them."""

    def __init__(self, settings: Settings, folder: Path, queue: str, r: random.Random, sequences: int) -> None:
        self.settings = settings
        self.sequences = sequences
        self.queue = queue
        self.r = r
        self._folder = folder
        self._config = folder / "writetime.toml"
        write_settings(settings, self._config)
        self.logs = {name: folder / f"{name}.log" for name in ("one", "other")}
        self._processes: list[BaseProcess] = []
        self.cursors: dict[str, list[int]] = {name: [] for name in self.logs}
        self._zookeeper = KazooClient(settings.zookeeper.hosts)
        self._zookeeper.start(60)
        for name, seen in self.cursors.items():
            self._zookeeper.DataWatch(f"/queues/{queue}/processors/{name}", partial(_note, seen))

    def spawn(self, *arguments: str, at: str | None = None) -> BaseProcess:
        """Start a process that ends, or is stopped, at a step."""
        keep_days = json.dumps({self.queue: 1e-9})
        environment = {"WRITETIME_CONFIG": str(self._config), "WRITETIME_REPLAY__KEEP_DAYS": keep_days}
        log = str(self._folder / "processes.log")
        started = _forks.Process(target=process.main, args=(environment, log, at, *arguments), daemon=True)
        started.start()
        self._processes.append(started)
        return started

    def between(self, first: float, last: float) -> int:
        """Return a number of batches between two shares of a producer's."""
        return self.r.randint(round(first * self.sequences), round(last * self.sequences))

    def ended(self, *processes: BaseProcess) -> set[int]:
        """Wait until processes have ended; return how, as 0 or the signal."""
        for p in processes:
            p.join(PATIENCE_SECONDS)
            code = p.exitcode
            assert code is not None, f"a process does not end: {self.output()}"
            assert code <= 0, self.output()
        return {-(p.exitcode or 0) for p in processes}

    def end(self, *processes: BaseProcess) -> None:
        """Ask processes to end, and wait for them."""
        for p in processes:
            p.terminate()
        self.ended(*processes)

    def publisher(self, producer: str, first: int = 1, at: str | None = None) -> BaseProcess:
        """Start a publisher of the sequences from one on: those that are published already change nothing."""
        return self.spawn("publish", self.queue, producer, str(first), str(self.sequences), at=at)

    def worker(self, name: str, at: str | None = None, command: str = "work") -> BaseProcess:
        """Start an instance of a processor."""
        return self.spawn(command, self.queue, name, str(self.logs[name]), at=at)

    def published(self, producer: str) -> int:
        """Return the last sequence of a producer that is published."""
        return max((s.sequence or 0 for s in self.seals() if s.producer == producer), default=1)

    def finish_publishing(self) -> None:
        """Let all that is not published yet be published: each publisher takes up its last known sequence again."""
        assert self.ended(*[self.publisher(p, self.published(p)) for p in PRODUCERS]) == {0}, self.output()

    def finish(self) -> None:
        """Let all be processed, and check."""
        self.finish_publishing()
        workers = [self.worker(name) for name in self.logs]
        with Publisher(self.settings, self.queue) as publisher:
            publisher.publish([THE_END])
        assert self.ended(*workers) == {0}, self.output()
        self.check()

    def check(self) -> None:
        """Batches are 1..n, whole, the same each time; each sequence once, in order; processors saw all in order, and
        their cursors never went back; retention deleted nothing that a processor had not done."""
        wanted = sorted((p, s) for p in PRODUCERS for s in range(1, self.sequences + 1))
        begin, head = extent(self.settings, self.queue)
        assert head == len(wanted) + 1
        first, again = ({b.n: b.items for b in replay(self.settings, self.queue)} for _ in range(2))
        assert first == again
        assert list(first) == list(range(begin, head + 1))
        found = check(self.settings, self.queue)
        assert (found.faults, found.batches, found.gone) == ([], len(first), begin - 1)
        seals = self.seals()
        assert [seal.n for seal in seals] == list(range(1, head + 1))
        assert first[head] == [THE_END]
        seals.pop()
        assert sorted((s.producer or "", s.sequence or 0) for s in seals) == wanted
        for producer in PRODUCERS:
            assert [s.sequence for s in seals if s.producer == producer] == list(range(1, self.sequences + 1))
        by_number = {s.n: items_of(s.producer or "", s.sequence or 0) for s in seals}
        assert all(items == by_number[n] for n, items in first.items() if n < head)
        assert all(a.published_at <= b.published_at for a, b in pairwise(seals))
        for name, log in self.logs.items():
            lines = log.read_text().splitlines()
            numbers = [int(line.split(" ")[0]) for line in lines]
            assert sorted(set(numbers)) == list(by_number), name
            pairs = zip(numbers, lines, strict=True)
            assert all(line == f"{n} {b','.join(by_number[n]).decode()}" for n, line in pairs)
            self.check_order(numbers)
            self.check_cursor(self.cursors[name])
        assert {x.processor: x.batches for x in lag(self.settings, self.queue)} == dict.fromkeys(self.logs, 1)

    def seals(self) -> list[Seal]:
        """Return the sealed batches, also those that were deleted."""
        with database.connect(self.settings) as session:
            batches = Batches(session, self.settings)
            head = batches.head(self.queue)
            return list(batches.between(self.queue, 1, head.n if head else 0))

    def check_order(self, numbers: list[int]) -> None:
        """A processor continues at its position, or repeats its last batch."""
        assert all(b in (a, a + 1) for a, b in pairwise(numbers)), numbers

    def check_cursor(self, seen: list[int]) -> None:
        """A cursor never goes back."""
        assert seen == sorted(seen), seen

    def output(self) -> str:
        """Return the end of the output of the processes, without the lines about waiting."""
        said = (self._folder / "processes.log").read_text().splitlines()
        return "\n".join(line for line in said if " waits: " not in line)[-4000:]

    def close(self) -> None:
        """End the running programs."""
        for p in self._processes:
            p.kill()
            p.join()
        self._zookeeper.stop()
        self._zookeeper.close()


def killed(run: Run) -> None:
    """Each process is killed before each of its steps."""
    for step in PUBLISHING:
        for producer in PRODUCERS:
            publisher = run.publisher(producer, run.published(producer), at=f"{step}:{run.r.randint(1, 3)}")
            assert run.ended(publisher) <= {0, signal.SIGKILL}, run.output()
    for number, step in enumerate(WORKING):
        # In a short run one of the two, in turn.
        names = list(run.logs) if run.sequences == SEQUENCES else [list(run.logs)[number % 2]]
        workers = [run.worker(name, at=f"{step}:{run.r.randint(1, 2)}") for name in names]
        assert run.ended(*workers) == {signal.SIGKILL}, run.output()


def expired(run: Run) -> None:
    """Publishers and subscribers that hold the lock are stopped until their sessions have expired, then continue."""
    stopped = []
    # Before the seal, and after it.
    for producer, steps in zip(PRODUCERS, (["seal"], ["record", "advance"]), strict=True):
        stopped.append(run.publisher(producer, at=f"{run.r.choice(steps)}:{run.r.randint(1, 4)}:stop"))
        wait_stopped(stopped[-1])
    time.sleep(_EXPIRED_SECONDS)
    go_on(stopped[1])
    assert run.ended(stopped[1]) == {0}, run.output()
    stopped.append(run.worker("one", at=f"{run.r.choice(['read', 'move'])}:2:stop"))
    wait_stopped(stopped[-1])
    # Another instance continues at the first one's position.
    second = run.worker("one")
    wait_until(lambda: lines(run.logs["one"]) >= run.sequences, run)
    for p in stopped:
        go_on(p)
    assert run.ended(stopped[0]) == {0}, run.output()
    run.check_order = lambda numbers: None  # type: ignore[method-assign]
    run.end(second, stopped[-1])


def doubled(run: Run) -> None:
    """Two instances of each processor are at work at once, and none knows of the other."""
    publishers = [run.publisher(p) for p in PRODUCERS]
    workers = [run.worker(name, command="heedless") for name in run.logs for _ in range(2)]
    assert run.ended(*publishers) == {0}, run.output()
    wait_until(lambda: all(run.sequences * 2 in numbers for numbers in run.cursors.values()), run)
    run.check_order = lambda numbers: None  # type: ignore[method-assign]
    run.end(*workers)


def replayed(run: Run) -> None:
    """Batches are read again and again while they are published, and a publisher is killed."""
    publishers = [
        run.publisher("a"),
        run.publisher("b", at=f"{run.r.choice(PUBLISHING)}:{run.between(1 / 4, 3 / 4)}"),
    ]
    workers = [run.worker(name) for name in run.logs]
    seen: dict[int, tuple[object, list[bytes]]] = {}
    while any(p.is_alive() for p in publishers):
        for first in (1, run.r.randint(1, max(1, len(seen)))):
            if extent(run.settings, run.queue)[1]:
                for batch in replay(run.settings, run.queue, first):
                    assert seen.setdefault(batch.n, (batch.seal, batch.items)) == (batch.seal, batch.items)
        assert list(seen) == list(range(1, len(seen) + 1))
    assert run.ended(*publishers) <= {0, signal.SIGKILL}, run.output()
    run.end(*workers)


def trimmed(run: Run) -> None:
    """Retention is killed before each of its steps, while all others work, and the last run completes it."""
    publishers = [run.publisher(p) for p in PRODUCERS]
    workers = [
        run.worker("one"),
        run.worker("other", at=f"move:{run.between(2 / 3, 4 / 3)}"),
    ]
    # Retention waits for processors that are known.
    wait_until(lambda: all(run.cursors.values()), run)
    for step in TRIMMING:
        trimming = run.spawn("trim", run.queue, at=f"{step}:1")
        assert run.ended(trimming) == {signal.SIGKILL}, run.output()
        begin, _ = extent(run.settings, run.queue)
        assert begin - 1 <= min(numbers[-1] for numbers in run.cursors.values())
    assert run.ended(*publishers) == {0}, run.output()
    assert run.ended(workers[1]) == {signal.SIGKILL}, run.output()
    keep_days = {run.queue: 1e-9}
    own = run.settings.model_copy(update={"replay": run.settings.replay.model_copy(update={"keep_days": keep_days})})
    wait_until(lambda: trim(own, run.queue).waits_for == "other", run)
    gone = extent(run.settings, run.queue)[0] - 1
    assert gone == run.cursors["other"][-1]
    with database.connect(run.settings) as session:
        attempts = {
            row.attempt
            for row in session.execute(
                f"SELECT DISTINCT queue, attempt, chunk FROM {run.settings.cassandra.keyspace}.replay_blocks"
            )
        }
    assert not attempts & {seal.attempt for seal in run.seals()[:gone]}
    run.end(workers[0])


def wiped(run: Run) -> None:
    """ZooKeeper loses its data again and again while all are at work."""
    publishers = [run.publisher(p) for p in PRODUCERS]
    workers = [run.worker(name) for name in run.logs]
    client = KazooClient(run.settings.zookeeper.hosts)
    client.start()
    try:
        while any(p.is_alive() for p in publishers):
            time.sleep(run.r.uniform(0.1, 0.5))
            # Others make nodes meanwhile.
            with suppress(NoNodeError, NotEmptyError):
                client.delete(f"/queues/{run.queue}", recursive=True)
    finally:
        client.stop()
        client.close()
    # A processor repeats the batches that its copy has not recorded yet.
    run.check_order = lambda numbers: None  # type: ignore[method-assign]
    run.check_cursor = lambda seen: None  # type: ignore[method-assign]
    run.end(*workers)


def restarted(run: Run) -> None:
    """Servers crash while publishers are about to seal, and while processors are at work."""
    workers = [run.worker(name) for name in run.logs]
    # A database that is not embedded continues to run.
    for server in [s for s in reversed(servers.servers(run.settings)) if s.name in ("cassandra", "zookeeper")]:
        at = f"seal:{run.r.randint(2, 4)}:stop"
        publishers = [run.publisher(p, run.published(p), at) for p in PRODUCERS]
        for publisher in publishers:
            wait_stopped(publisher)
        wait_until(lambda: all(lines(log) for log in run.logs.values()), run)
        crash(server, run.settings, lambda publishers=publishers: [go_on(p) for p in publishers])
        for publisher in publishers[: run.r.randint(0, 2)]:
            publisher.kill()
        assert run.ended(*publishers) <= {0, signal.SIGKILL}, run.output()
    run.end(*workers)


def crash(server: EmbeddedServer, settings: Settings, while_down: Callable[[], object]) -> None:
    """Kill a server and start it again."""
    try:
        kill(server, settings)
        while_down()
        time.sleep(0.5)
    finally:
        server.start()


FAULTS: dict[str, Callable[[Run], None]] = {
    f.__name__: f for f in (killed, expired, doubled, replayed, trimmed, wiped, restarted)
}


def run_fault(
    settings: Settings, folder: Path, queue: str, fault: str, r: random.Random, sequences: int = SEQUENCES
) -> None:
    """Make one run; each producer publishes so many sequences."""
    run = Run(settings, folder, queue, r, sequences)
    with ExitStack() as stack:
        stack.callback(run.close)
        FAULTS[fault](run)
        run.finish()


def lines(log: Path) -> int:
    """Count the lines of a file that may not be there yet."""
    return len(log.read_text().splitlines()) if log.exists() else 0


def go_on(stopped: BaseProcess) -> None:
    """Let a stopped process continue; it may have ended before."""
    with suppress(ProcessLookupError):
        os.kill(stopped.pid or 0, signal.SIGCONT)


def wait_stopped(stopped: BaseProcess) -> None:
    """Wait until a process is stopped, or has ended before that."""
    with suppress(psutil.NoSuchProcess):
        while stopped.is_alive() and psutil.Process(stopped.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.02)


def _note(seen: list[int], data: bytes | None, _: object) -> None:
    if data:
        seen.append(int(data.rpartition(b"-")[2]))


def wait_until(condition: Callable[[], bool], run: Run) -> None:
    """Wait for something."""
    assert waiting.wait_until(condition, PATIENCE_SECONDS, 0.05), run.output()


def main() -> None:
    """Make runs, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        ports = [free_port() for _ in range(5)]
        settings = config.load(
            cassandra={"port": ports[0]},
            kafka={"bootstrap_servers": f"127.0.0.1:{ports[1]}"},
            zookeeper={"hosts": f"127.0.0.1:{ports[2]}"},
            embedded={
                "home": home,
                "cassandra_storage_port": ports[3],
                "kafka_controller_port": ports[4],
                "start_timeout_seconds": PATIENCE_SECONDS,
            },
            replay={"poll_seconds": 0.2, "publish_timeout_seconds": 100.0},
        )
        servers.up(settings)
        try:
            database.apply_schema(settings)
            for i in range(options.seed, options.seed + options.runs):
                fault = list(FAULTS)[i % len(FAULTS)]
                folder = Path(home) / f"run{i}"
                folder.mkdir()
                began = time.monotonic()
                run_fault(settings, folder, f"q{i}", fault, random.Random(i))
                print(
                    json.dumps({"seed": i, "fault": fault, "seconds": round(time.monotonic() - began, 1)}), flush=True
                )
        finally:
            servers.down(settings)


if __name__ == "__main__":
    main()
