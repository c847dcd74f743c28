"""The faults, each as a function of a stage. `python -m tests.workqueue.faults --runs N --seed S` runs many of them."""

import random
import signal
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import click

from tests.support.servers import kill
from tests.workqueue.conftest import with_queue
from tests.workqueue.process import POINTS
from tests.workqueue.stage import Stage, until
from writetime.clients import database
from writetime.core import config
from writetime.core.config import Settings
from writetime.servers.cassandra import CassandraServer
from writetime.servers.process import free_port
from writetime.workqueue import Schedule, pause, resume, schedule, unschedule

ITEMS = 60
STEP_POINTS = ("before record", "after record")


def killed(stage: Stage, point: str | None = None) -> None:
    """A worker is killed at an exact point of its work, and another one continues."""
    stage.enqueuer(ITEMS)
    stage.worker(trap=point or stage.rng.choice(POINTS), trap_at=stage.rng.randrange(1, 20), work_seconds=0.01)
    stage.wait_for("trap")
    stage.worker()


def zombie(stage: Stage) -> None:
    """A worker is paused during an item for longer than its lease, then continues: its write is refused."""
    stage.enqueuer(ITEMS)
    at = stage.rng.randrange(1, 10)
    first = stage.worker(trap="after effect", trap_at=at, trap_signal=signal.SIGSTOP)
    stage.wait_for("trap")
    until(lambda: first.stopped, "the worker has stopped")
    second = stage.worker(work_seconds=0.02)
    before = len(stage.lines("completed"))
    until(lambda: len(stage.lines("completed")) > before + 5, "the other worker has taken over")
    held = stage.settings.workqueue.lease_seconds
    time.sleep(held * 0.5)
    first.signal(signal.SIGCONT)
    stage.wait_for("completed", before + 10)
    second.signal(0)


def paused_often(stage: Stage) -> None:
    """Workers are paused and continued at any moment, for less and for more than their lease."""
    stage.enqueuer(ITEMS, pause=0.02)
    workers = [stage.worker(work_seconds=0.02), stage.worker(work_seconds=0.02)]
    stage.wait_for("effect")
    for _ in range(4):
        worker = stage.rng.choice(workers)
        worker.signal(signal.SIGSTOP)
        time.sleep(stage.settings.workqueue.lease_seconds * stage.rng.choice([0.3, 1.5]))
        worker.signal(signal.SIGCONT)


def wrong_clocks(stage: Stage) -> None:
    """The wall clocks of enqueuers and workers are a minute off, in both directions."""
    for offset in (-60.0, 0.0, 60.0):
        stage.enqueuer(ITEMS // 3, clock_offset=offset)
    first = stage.worker(clock_offset=60.0, work_seconds=0.02)
    stage.worker(clock_offset=-60.0, work_seconds=0.02)
    stage.wait_for("completed", 5)
    first.signal(signal.SIGKILL)


def lost_answers(stage: Stage) -> None:
    """Answers of conditional writes are lost after they were applied."""
    stage.enqueuer(ITEMS)
    stage.proxy.loss = 0.05
    stage.worker(work_seconds=0.01)
    stage.worker(work_seconds=0.01)
    stage.wait_for("completed", ITEMS // 2)
    stage.proxy.loss = 0.0


def controlled(stage: Stage) -> None:
    """The queue is paused and resumed, and items are cancelled, while a worker is killed and another one continues."""
    stage.enqueuer(ITEMS, keys=3)
    first = stage.worker(work_seconds=0.05)
    stage.wait_for("effect", 3)
    pause(stage.settings, stage.queue)
    time.sleep(stage.settings.workqueue.lease_seconds)
    begun = len(stage.lines("effect"))
    time.sleep(1)
    assert len(stage.lines("effect")) == begun, "a paused queue has begun items"
    stage.cancel(ITEMS // 6)
    first.signal(signal.SIGKILL)
    stage.worker(trap=stage.rng.choice(POINTS), trap_at=stage.rng.randrange(1, 10), work_seconds=0.05)
    resume(stage.settings, stage.queue)
    stage.wait_for("trap")
    stage.worker(work_seconds=0.05)
    stage.cancel(ITEMS // 6)


def recurring(stage: Stage) -> None:
    """Slots come while workers, whose wall clocks are a minute off, are killed with a slot's item not inserted, or
    paused for longer than their lease.
    """
    schedule(stage.settings, stage.queue, Schedule("slots", "*/2 * * * * *"))
    stage.worker(trap="after name", trap_at=stage.rng.randrange(1, 4), clock_offset=60.0)
    stage.wait_for("trap")
    second = stage.worker(clock_offset=-60.0)
    stage.wait_for("completed", len(stage.lines("completed")) + 3)
    second.signal(signal.SIGSTOP)
    stage.worker()
    stage.wait_for("completed", len(stage.lines("completed")) + 2)
    second.signal(signal.SIGCONT)
    stage.wait_for("completed", len(stage.lines("completed")) + 3)
    assert unschedule(stage.settings, stage.queue, "slots")


def steps(stage: Stage) -> None:
    """Workers are killed and paused for longer than their lease, before and after the record of a step."""
    stage.enqueuer(ITEMS // 2)
    for number, point in enumerate(stage.rng.sample(STEP_POINTS, 2), 1):
        stage.worker(trap=point, trap_at=stage.rng.randrange(1, 5), work_seconds=0.02, steps=True)
        stage.wait_for("trap", number)
    zombie = stage.worker(trap="before record", trap_at=2, trap_signal=signal.SIGSTOP, work_seconds=0.02, steps=True)
    stage.wait_for("trap", 3)
    until(lambda: zombie.stopped, "the worker has stopped")
    stage.worker(work_seconds=0.02, steps=True)
    stage.wait_for("completed", len(stage.lines("completed")) + 3)
    zombie.signal(signal.SIGCONT)


def sleeps(stage: Stage) -> None:
    """Items sleep and wait for events, which come while workers are killed, and paused for longer than their lease."""
    stage.enqueuer(ITEMS // 2, keys=ITEMS)
    first = stage.worker(steps=True, sleeps=True)
    second = stage.worker(steps=True, sleeps=True)
    stage.wait_for("recorded", 5)
    stage.send_events()
    first.signal(signal.SIGKILL)
    second.signal(signal.SIGSTOP)
    third = stage.worker(steps=True, sleeps=True)
    stage.wait_for("event", 3)
    second.signal(signal.SIGCONT)
    stage.wait_for("acknowledged", ITEMS // 2)
    stage.send_events()
    third.signal(signal.SIGKILL)


def bucket_ends(stage: Stage) -> None:
    """Items come while one bucket ends and the next begins, again and again, and a worker is killed meanwhile."""
    stage.enqueuer(ITEMS, pause=0.05)
    first = stage.worker(work_seconds=0.01)
    stage.wait_for("completed", 10)
    first.signal(signal.SIGKILL)
    stage.worker()


def database_away(stage: Stage) -> None:
    """The database ends all connections in the midst of it all, and answers again later."""
    stage.enqueuer(ITEMS, pause=0.05)
    stage.worker(work_seconds=0.02)
    stage.wait_for("completed", 5)
    with stage.proxy.down():
        time.sleep(stage.rng.uniform(0, 2))


def database_killed(stage: Stage) -> None:
    """The database is killed in the midst of it all, and started again."""
    stage.enqueuer(ITEMS, pause=0.05)
    stage.worker(work_seconds=0.02)
    stage.wait_for("completed", 5)
    server = CassandraServer(stage.settings)
    kill(server, stage.settings)
    time.sleep(stage.rng.uniform(0, 1))
    server.start()


FAULTS: dict[str, Callable[[Stage], None]] = {
    **{f"killed {point}": lambda stage, point=point: killed(stage, point) for point in POINTS},
    "zombie": zombie,
    "paused often": paused_often,
    "wrong clocks": wrong_clocks,
    "lost answers": lost_answers,
    "controlled": controlled,
    "recurring": recurring,
    "steps": steps,
    "sleeps": sleeps,
    "bucket ends": bucket_ends,
    "database away": database_away,
    "database killed": database_killed,
}
# A bucket of seconds instead of an hour.
SHORT_BUCKETS = ("bucket ends", "wrong clocks")


def run(settings: Settings, fault: str, seed: int, folder: Path) -> str:
    """Cause a fault in a separate queue, and check it; return the counts."""
    queue = f"fault-{uuid.uuid4().hex[:12]}"
    shorter = {"bucket_seconds": 2} if fault in SHORT_BUCKETS else {}
    own = with_queue(settings, queue, {"shards": 2}, lease_seconds=3.0, **shorter)
    with Stage(own, queue, random.Random(seed), folder) as stage:
        FAULTS[fault](stage)
        return stage.finish()


@click.command()
@click.option("--runs", default=100, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--fault", type=click.Choice(list(FAULTS)), help="This one only.")
def main(runs: int, seed: int, fault: str | None) -> None:
    """Run many faults on a database of their own."""
    with tempfile.TemporaryDirectory() as home:
        settings = config.load(
            cassandra={"port": free_port()},
            embedded={"home": home, "cassandra_storage_port": free_port(), "cassandra_heap_mb": 512},
        )
        server = CassandraServer(settings)
        server.start()
        try:
            database.apply_schema(settings)
            for number in range(seed, seed + runs):
                name = fault or list(FAULTS)[number % len(FAULTS)]
                folder = Path(home) / f"run-{number}"
                folder.mkdir()
                began = time.monotonic()
                print(f"seed {number}, {name}: ", end="", flush=True)
                counted = run(settings, name, number, folder)
                print(f"{counted}, {time.monotonic() - began:.0f} s", flush=True)
        finally:
            server.stop()
    print(f"{runs} runs, no fault")


if __name__ == "__main__":
    main()
