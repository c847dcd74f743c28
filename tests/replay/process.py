"""A publisher, a subscriber or retention as a process that may kill itself at a step.

    publish QUEUE PRODUCER FIRST LAST    publish those sequences; batch `s` has the items `PRODUCER-s-0`, ...
    work QUEUE NAME LOG                  process batches, a line in LOG for each, until a batch holds `the end`
    heedless QUEUE NAME LOG              the same, but without the lock that keeps two instances apart
    trim QUEUE                           delete what all processors have done, again and again

`step:count[:stop]` kills the process by SIGKILL (or stops it by SIGSTOP) before it does that step for the `count`th
time.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from writetime import replay
from writetime.core import config
from writetime.replay import Batch, Publisher, Subscriber, coordination
from writetime.replay.batches import Batches
from writetime.replay.coordination import Coordination
from writetime.replay.publisher import PublishUnknown

# Before each of these steps, and after the last one, a process may end.
STEPS: dict[str, tuple[type, str]] = {
    "blocks": (Batches, "insert_blocks"),
    "seal": (Batches, "seal"),
    "record": (Batches, "record"),
    "advance": (Coordination, "advance"),
    "read": (Batches, "read"),
    "move": (Coordination, "move"),
    "copy": (Batches, "keep_cursor"),
    "announce": (Batches, "announce"),
    "delete": (Batches, "delete_blocks"),
    "deleted": (Batches, "say_deleted"),
}
THE_END = b"the end"


def items_of(producer: str, sequence: int) -> list[bytes]:
    """The items of a producer."""
    return [f"{producer}-{sequence}-{i}".encode() for i in range(sequence % 4)]


def publish(queue: str, producer: str, first: str, last: str) -> None:
    """Publish some batches."""
    with Publisher(config.load(), queue) as publisher:
        sequence = int(first)
        while sequence <= int(last):
            # As often as it is not known whether it was published: a database may take long to start again.
            with suppress(PublishUnknown):
                publisher.publish(items_of(producer, sequence), producer=producer, sequence=sequence)
                sequence += 1


def work(queue: str, name: str, log: str) -> None:
    """Record the processed items."""

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


def heedless(queue: str, name: str, log: str) -> None:
    """Work as if ZooKeeper's lock were held, which another instance may believe, too."""
    Coordination.working = lambda *_: nullcontext(True)  # type: ignore[method-assign]
    work(queue, name, log)


def trim(queue: str) -> None:
    """Delete."""
    while True:
        replay.trim(config.load(), queue)
        time.sleep(0.1)


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


def main(environment: dict[str, str], log: str, at: str | None, command: str, *arguments: str) -> None:
    """Run one of the commands, in a process that was forked for it."""
    with Path(log).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(environment)
    if at:
        step, count, *stop = at.split(":")
        _arm(step, int(count), signal.SIGSTOP if stop else signal.SIGKILL)
    # A session that expires soon.
    coordination.KazooClient = partial(KazooClient, timeout=2.5)
    {"publish": publish, "work": work, "heedless": heedless, "trim": trim}[command](*arguments)
