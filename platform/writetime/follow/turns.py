"""Gives tables turns on a few threads, so that a table does not wait for long while others have much work.

Tables wait in the order in which they became due. A table whose turn takes long moves to separate places, and stays
there until one of its turns is short. So tables with large backlogs share these places, and the other places stay free
for tables with little work.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


class Turns:
    """The tables that are at work, and those that wait for a turn. The arguments are those of `turns`."""

    def __init__(self, threads: ThreadPoolExecutor, places: int, long_places: int, long_seconds: float) -> None:
        self._threads = threads
        self._places = places
        self._long_places = long_places
        self._long_seconds = long_seconds
        self._waiting: dict[str, Callable[[], None]] = {}
        # When each turn began, and the tables whose last turn was long.
        self._begun: dict[str, float] = {}
        self._long: set[str] = set()
        self._lock = threading.Lock()

    def offer(self, work: Mapping[str, Callable[[], None]], is_due: Callable[[str], bool]) -> None:
        """Queue the tables that are due and not at work. New work of a table replaces its waiting work. A table that is
        no longer due leaves the queue. No turn begins meanwhile.
        """
        with self._lock:
            names = [name for name in dict.fromkeys((*self._waiting, *work)) if name in work]
            self._waiting = {name: work[name] for name in names if name not in self._begun and is_due(name)}
            self._begin_turns()

    def end(self) -> None:
        """Begin no more turns."""
        with self._lock:
            self._waiting = {}

    def _begin_turns(self) -> None:
        """Begin turns while there are places, the longest waiting table first."""
        now = time.monotonic()
        at_work = len(self._begun)
        long = sum(name in self._long or now - begun > self._long_seconds for name, begun in self._begun.items())
        for name in list(self._waiting):
            is_long = name in self._long
            has_place = long < self._long_places if is_long else at_work - long < self._places
            if has_place and at_work < self._places + self._long_places:
                at_work, long = at_work + 1, long + is_long
                self._begun[name] = now
                self._threads.submit(self._turn, name, self._waiting.pop(name))

    def _turn(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                if time.monotonic() - self._begun.pop(name) > self._long_seconds:
                    self._long.add(name)
                else:
                    self._long.discard(name)
                self._begin_turns()


@contextmanager
def turns(places: int = 8, long_places: int = 8, long_seconds: float = 5.0) -> Iterator[Turns]:
    """Give turns for a `with` block. At its end, tables at work finish their turn.

    Args:
        places: the number of tables that are at work at the same time. More would wait for the same cores.
        long_places: the same for tables whose turns take long.
        long_seconds: a turn takes long if it takes more than this.
    """
    with ThreadPoolExecutor(places + long_places, "follow") as threads:
        given = Turns(threads, places, long_places, long_seconds)
        try:
            yield given
        finally:
            given.end()
