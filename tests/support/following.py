"""A program that follows tables."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from writetime.core.config import Settings
from writetime.follow.program import Follower


@contextmanager
def following(settings: Settings, *names: str) -> Iterator[Follower]:
    """A program that follows tables, in a thread."""
    stop, follower = threading.Event(), Follower(settings, names)
    thread = threading.Thread(target=follower.run, args=(stop,))
    thread.start()
    try:
        yield follower
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
