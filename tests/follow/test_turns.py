"""Tables take turns: a table with much work does not delay the others for long."""

import threading
import time
from collections.abc import Callable
from functools import partial

from tests.support.waiting import wait_for
from writetime.follow.turns import Turns, turns

few_turns = partial(turns, places=2, long_places=2, long_seconds=0.2)


class Tables:
    """Tables that are always due. A turn of one that is held lasts until it is released."""

    def __init__(self, given: Turns, *names: str) -> None:
        self.begun: list[str] = []
        self.held = {name: threading.Event() for name in names}
        self._given = given

    def look(self, *names: str) -> None:
        self._given.offer({name: self._work(name) for name in names}, lambda _: True)

    def goes_on(self, name: str, *others: str) -> bool:
        """Whether a table begins turns again and again, together with others."""
        before = self.begun.count(name)
        wait_for(lambda: [self.look(*others, name), self.begun.count(name) > before + 3][1], 5)
        return True

    def hold(self) -> None:
        for held in self.held.values():
            held.clear()

    def release(self) -> None:
        for held in self.held.values():
            held.set()

    def _work(self, name: str) -> Callable[[], None]:
        def work() -> None:
            self.begun.append(name)
            if name in self.held:
                self.held[name].wait(10)

        return work


def test_the_longest_waiting_table_is_next() -> None:
    with turns(places=1, long_seconds=60) as given:
        tables = Tables(given, "a")
        tables.look("a", "b", "c")
        tables.look("b", "c", "d")
        tables.look("a", "d", "c")
        tables.held["a"].set()
        wait_for(lambda: len(tables.begun) == 3)
    # A turn that was no longer due did not wait.
    assert tables.begun == ["a", "c", "d"]


def test_tables_that_stand_still_do_not_delay_the_others() -> None:
    with few_turns() as given:
        tables = Tables(given, "a", "b")
        tables.look("a", "b", "c")
        wait_for(lambda: tables.begun == ["a", "b"])
        assert tables.goes_on("c", "a", "b")
        tables.release()
        wait_for(lambda: [tables.look("a", "b", "c"), tables.begun.count("a") > 2][1])


def test_tables_whose_turns_are_long_share_their_places() -> None:
    with few_turns() as given:
        tables = Tables(given, *"abcd")
        wait_for(lambda: [tables.look(*"abcd"), len(tables.begun) == 4][1])
        time.sleep(0.3)
        tables.release()
        wait_for(lambda: not given._begun)
        tables.hold()
        assert tables.goes_on("e", *"abcd")
        assert sorted(given._begun.keys() - {"e"}) == ["a", "b"]
        tables.release()
        wait_for(lambda: [tables.look(*"abcde"), {"c", "d"} <= set(tables.begun[4:])][1])


def test_no_turn_begins_after_the_end() -> None:
    with few_turns() as given:
        tables = Tables(given, "a", "b")
        tables.look(*"abcd")
        threading.Timer(0.5, tables.release).start()
    assert tables.begun == ["a", "b"]
