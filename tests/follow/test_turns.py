"""Tables take turns: a table with much work does not delay the others for long."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.waiting import wait_for
from writetime.follow.turns import Turns, turns

few_turns = partial(turns, places=2, long_places=2, long_seconds=1.0)


class Clock:
    """A clock that a test sets: on a busy machine, turns without work would be long, too."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def pass_long(self) -> None:
        """Let the turns of all tables at work become long."""
        self.now += 2.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("writetime.follow.turns.time", made)
    return made


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
        wait_for(lambda: [self.look(*others, name), self.begun.count(name) > before + 3][1])
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


def test_tables_that_stand_still_do_not_delay_the_others(clock: Clock) -> None:
    with few_turns() as given:
        tables = Tables(given, "a", "b")
        tables.look("a", "b", "c")
        wait_for(lambda: sorted(tables.begun) == ["a", "b"])
        clock.pass_long()
        assert tables.goes_on("c", "a", "b")
        tables.release()
        wait_for(lambda: [tables.look("a", "b", "c"), tables.begun.count("a") > 2][1])


def test_tables_whose_turns_are_long_share_their_places(clock: Clock) -> None:
    with few_turns() as given:
        tables = Tables(given, *"abcd")
        for begun in ("ab", "abcd"):
            tables.look(*"abcd")
            wait_for(lambda begun=begun: sorted(tables.begun) == list(begun))
            clock.pass_long()
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
    assert sorted(tables.begun) == ["a", "b"]
