"""Publishers and subscribers that are killed and stopped, ZooKeeper's data lost, servers restarted; and the checker.

`python -m tests.replay.faults --runs 20 --seed 1` makes many runs on servers of its own.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from tests.conftest import write_settings
from tests.replay.process import THE_END, items_of
from writetime import config, database, servers
from writetime.config import Settings
from writetime.replay import Publisher, check, lag, replay
from writetime.servers.cassandra import CassandraServer
from writetime.servers.process import EmbeddedServer, free_port
from writetime.servers.zookeeper import ZooKeeperServer

PRODUCERS = ("a", "b")
SEQUENCES = 12
_PATIENCE_SECONDS = 120.0
PUBLISHING = ("blocks", "seal", "record", "advance")
WORKING = ("advance", "read", "move", "copy")


class Run:
    """One run: producers publish, processors work, and something happens to them."""

    def __init__(self, settings: Settings, folder: Path, queue: str, r: random.Random) -> None:
        self.settings = settings
        self.queue = queue
        self.r = r
        self._folder = folder
        self._config = folder / "writetime.toml"
        write_settings(settings, self._config)
        self.logs = {name: folder / f"{name}.log" for name in ("one", "other")}
        self._processes: list[subprocess.Popen[bytes]] = []

    def spawn(self, *arguments: str, at: str | None = None) -> "subprocess.Popen[bytes]":
        """Start a process that ends, or is stopped, at a step."""
        env = {**os.environ, "WRITETIME_CONFIG": str(self._config), **({"AT": at} if at else {})}
        with (self._folder / "processes.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.replay.process", *arguments], env=env, stdout=log, stderr=log
            )
        self._processes.append(process)
        return process

    def publisher(self, producer: str, first: int = 1, at: str | None = None) -> "subprocess.Popen[bytes]":
        """Start a publisher of the sequences from one on: those that are published already change nothing."""
        return self.spawn("publish", self.queue, producer, str(first), str(SEQUENCES), at=at)

    def worker(self, name: str, at: str | None = None) -> "subprocess.Popen[bytes]":
        """Start an instance of a processor."""
        return self.spawn("work", self.queue, name, str(self.logs[name]), at=at)

    def published(self, producer: str) -> int:
        """Return the last sequence of a producer that is published."""
        with database.connect(self.settings) as session:
            rows = session.execute(
                f"SELECT sequence FROM {self.settings.cassandra.keyspace}.replay_producers WHERE queue = %s AND "
                "producer = %s",
                (self.queue, producer),
            ).all()
        return rows[0].sequence if rows else 1

    def finish_publishing(self) -> None:
        """Let all that is not published yet be published: each publisher takes up its last known sequence again."""
        for process in [self.publisher(p, self.published(p)) for p in PRODUCERS]:
            assert process.wait(_PATIENCE_SECONDS) == 0, self.output()

    def finish(self) -> None:
        """Let all be processed, and check."""
        self.finish_publishing()
        workers = [self.worker(name) for name in self.logs]
        with Publisher(self.settings, self.queue) as publisher:
            publisher.publish([THE_END])
        for worker in workers:
            assert worker.wait(_PATIENCE_SECONDS) == 0, self.output()
        self.check()

    def check(self) -> None:
        """Batches are 1..n, whole, the same each time; each sequence once, in order; processors saw all in order."""
        first, again = ([(b.n, b.items) for b in replay(self.settings, self.queue)] for _ in range(2))
        assert first == again
        assert not check(self.settings, self.queue).faults
        wanted = sorted((p, s) for p in PRODUCERS for s in range(1, SEQUENCES + 1))
        assert [n for n, _ in first] == list(range(1, len(wanted) + 2))
        seals = [batch.seal for batch in replay(self.settings, self.queue, 1, len(wanted))]
        assert sorted((s.producer or "", s.sequence or 0) for s in seals) == wanted
        for producer in PRODUCERS:
            assert [s.sequence for s in seals if s.producer == producer] == list(range(1, SEQUENCES + 1))
        for seal, (_, items) in zip(seals, first[:-1], strict=True):
            assert items == items_of(seal.producer or "", seal.sequence or 0)
        assert all(a.published_at <= b.published_at for a, b in pairwise(seals))
        for name, log in self.logs.items():
            lines = log.read_text().splitlines()
            numbers = [int(line.split(" ")[0]) for line in lines]
            assert sorted(set(numbers)) == list(range(1, len(wanted) + 1)), name
            by_number = {n: b",".join(items).decode() for n, items in first}
            assert all(line == f"{n} {by_number[n]}" for n, line in zip(numbers, lines, strict=True))
            self.check_order(numbers)
        assert {x.processor: x.batches for x in lag(self.settings, self.queue)} == dict.fromkeys(self.logs, 1)

    def check_order(self, numbers: list[int]) -> None:
        """A processor goes on where it was, or does its last batch again."""
        assert all(b in (a, a + 1) for a, b in pairwise(numbers)), numbers

    def output(self) -> str:
        """Return the end of what the processes said."""
        return (self._folder / "processes.log").read_text()[-4000:]

    def close(self) -> None:
        """End what still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def killed(run: Run) -> None:
    """Each process is killed before each of its steps."""
    for step in PUBLISHING:
        for producer in PRODUCERS:
            process = run.publisher(producer, run.published(producer), at=f"{step}:{run.r.randint(1, 3)}")
            assert process.wait(_PATIENCE_SECONDS) in (0, -signal.SIGKILL), run.output()
    for step in WORKING:
        for name in run.logs:
            process = run.worker(name, at=f"{step}:{run.r.randint(1, 2)}")
            assert process.wait(_PATIENCE_SECONDS) == -signal.SIGKILL, run.output()


def expired(run: Run) -> None:
    """Publishers and subscribers are stopped until their sessions have expired, with the lock in hand, and go on."""
    stopped = [run.publisher("a", at=f"{run.r.choice(['seal', 'record', 'advance'])}:{run.r.randint(1, 4)}:stop")]
    wait_stopped(stopped[0])
    assert run.publisher("b").wait(_PATIENCE_SECONDS) == 0, run.output()
    stopped.append(run.worker("one", at=f"{run.r.choice(['read', 'move'])}:2:stop"))
    wait_stopped(stopped[1])
    # Another instance goes on, where the first one was.
    second = run.worker("one")
    wait_until(lambda: lines(run.logs["one"]) >= SEQUENCES, run)
    for process in stopped:
        process.send_signal(signal.SIGCONT)
    assert stopped[0].wait(_PATIENCE_SECONDS) == 0, run.output()
    run.check_order = lambda numbers: None  # type: ignore[method-assign]
    second.terminate()
    stopped[1].terminate()
    for process in (second, stopped[1]):
        process.wait(_PATIENCE_SECONDS)


def wiped(run: Run) -> None:
    """ZooKeeper loses its data again and again while all are at work."""
    processes = [*(run.publisher(p) for p in PRODUCERS), *(run.worker(name) for name in run.logs)]
    client = KazooClient(run.settings.zookeeper.hosts)
    client.start()
    try:
        while processes[0].poll() is None or processes[1].poll() is None:
            time.sleep(run.r.uniform(0.1, 0.5))
            # Others make nodes meanwhile.
            with suppress(NoNodeError, NotEmptyError):
                client.delete(f"/queues/{run.queue}", recursive=True)
    finally:
        client.stop()
        client.close()
    # What a processor has done and its copy does not know yet, it does again.
    run.check_order = lambda numbers: None  # type: ignore[method-assign]
    for process in processes[2:]:
        process.terminate()
        process.wait(_PATIENCE_SECONDS)


def restarted(run: Run) -> None:
    """Servers crash while publishers are about to seal, and while processors are at work."""
    workers = [run.worker(name) for name in run.logs]
    for server in (CassandraServer(run.settings), ZooKeeperServer(run.settings)):
        at = f"seal:{run.r.randint(2, 4)}:stop"
        publishers = [run.publisher(p, run.published(p), at) for p in PRODUCERS]
        for publisher in publishers:
            wait_stopped(publisher)
        wait_until(lambda: all(lines(log) for log in run.logs.values()), run)
        crash(server, lambda publishers=publishers: [p.send_signal(signal.SIGCONT) for p in publishers])
        for publisher in publishers[: run.r.randint(0, 2)]:
            publisher.kill()
        for publisher in publishers:
            assert publisher.wait(_PATIENCE_SECONDS) in (0, -signal.SIGKILL), run.output()
    for worker in workers:
        worker.terminate()
        worker.wait(_PATIENCE_SECONDS)


def crash(server: EmbeddedServer, while_down: Callable[[], object]) -> None:
    """Kill a server and start it again."""
    try:
        server.stop(signal.SIGKILL)
        while_down()
        time.sleep(0.5)
    finally:
        server.start()


FAULTS: dict[str, Callable[[Run], None]] = {f.__name__: f for f in (killed, expired, wiped, restarted)}


def run_fault(settings: Settings, folder: Path, queue: str, fault: str, r: random.Random) -> None:
    """Make one run."""
    run = Run(settings, folder, queue, r)
    with ExitStack() as stack:
        stack.callback(run.close)
        FAULTS[fault](run)
        run.finish()


def lines(log: Path) -> int:
    """Count the lines of a file that may not be there yet."""
    return len(log.read_text().splitlines()) if log.exists() else 0


def wait_stopped(process: "subprocess.Popen[bytes]") -> None:
    """Wait until a process is stopped, or has ended before that."""
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def wait_until(condition: Callable[[], bool], run: Run) -> None:
    """Wait for something."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, run.output()
        time.sleep(0.05)


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
            embedded={"home": home, "cassandra_storage_port": ports[3], "kafka_controller_port": ports[4]},
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
