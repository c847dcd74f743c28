"""One publisher or subscriber as a process that may kill itself at a step: `python -m tests.replay.process`.

    publish QUEUE PRODUCER FIRST LAST    publish those sequences; batch `s` has the items `PRODUCER-s-0`, ...
    work QUEUE NAME LOG                  process batches, a line in LOG for each, until a batch holds `the end`

`AT=step:count[:stop]` kills it by SIGKILL (or stops it by SIGSTOP) before it does that step for the so-manieth time.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from writetime import config
from writetime.replay import Batch, Publisher, Subscriber, coordination
from writetime.replay.batches import Batches
from writetime.replay.coordination import Coordination

# Before each of these steps, and after the last one, a process may end.
STEPS: dict[str, tuple[type, str]] = {
    "blocks": (Batches, "insert_blocks"),
    "seal": (Batches, "seal"),
    "record": (Batches, "record"),
    "advance": (Coordination, "advance"),
    "read": (Batches, "read"),
    "move": (Coordination, "move"),
    "copy": (Batches, "keep_cursor"),
}
THE_END = b"the end"


def items_of(producer: str, sequence: int) -> list[bytes]:
    """What a producer publishes."""
    return [f"{producer}-{sequence}-{i}".encode() for i in range(sequence % 4)]


def publish(queue: str, producer: str, first: str, last: str) -> None:
    """Publish some batches."""
    with Publisher(config.load(), queue) as publisher:
        for sequence in range(int(first), int(last) + 1):
            publisher.publish(items_of(producer, sequence), producer=producer, sequence=sequence)


def work(queue: str, name: str, log: str) -> None:
    """Write down what is processed."""

    class Ended(Exception):
        pass

    def handle(batch: Batch) -> None:
        if batch.items == [THE_END]:
            raise Ended
        with Path(log).open("a") as f:
            f.write(f"{batch.n} {b','.join(batch.items).decode()}\n")

    with Subscriber(config.load(), queue, name) as subscriber:
        try:
            subscriber.run(handle)
        except Ended:
            return


def _arm(step: str, count: int, number: signal.Signals) -> None:
    of, name = STEPS[step]
    inner: Callable[..., Any] = getattr(of, name)
    left = [count]

    def step_or_end(*arguments: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), number)
        return inner(*arguments)

    setattr(of, name, step_or_end)


if __name__ == "__main__":
    if at := os.environ.get("AT"):
        step, count, *stop = at.split(":")
        _arm(step, int(count), signal.SIGSTOP if stop else signal.SIGKILL)
    # A session that expires soon.
    coordination.KazooClient = partial(KazooClient, timeout=2.5)
    {"publish": publish, "work": work}[sys.argv[1]](*sys.argv[2:])
