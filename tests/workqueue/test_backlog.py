"""The backlog's guarantees, for generated items: order by key, limits, and no lost item.

Oracle: the generated items: their keys, limits and number.
"""

import random
from dataclasses import asdict, dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from writetime.workqueue.backlog import Backlog, Rate, part
from writetime.workqueue.items import Entry, IdMaker, ItemPartition

PLACE = ItemPartition("q", 0, 0)


@dataclass(frozen=True)
class Limits:
    concurrency: int | None
    key_concurrency: int
    rate: float | None
    key_rate: float | None


class Run:
    """Adds items to a backlog by and by, and runs what it returns; some items fail once. Some are withdrawn, and keys
    or all are paused for a while.
    """

    def __init__(self, drawn: list[tuple[str | None, int, bool]], limits: Limits, seed: int) -> None:
        self.rng, ids = random.Random(seed), IdMaker()
        self.limits = limits
        self.backlog = Backlog(**asdict(limits))
        self.waiting = [Entry(PLACE, ids.make(n * 1000), key, "1", due=due) for n, (key, due, _) in enumerate(drawn)]
        self.fails = {entry.item_id: fails for entry, (*_, fails) in zip(self.waiting, drawn, strict=True)}
        self.now = self.begun = 0
        self.running: list[Entry] = []
        self.finished: list[Entry] = []
        self.withdrawn: list[Entry] = []
        self.paused: set[str] = set()
        self.all_paused = False

    def step(self) -> None:
        while self.waiting and self.rng.random() < 0.5:
            self.backlog.add(self.waiting.pop(0), self.now)
        self.control()
        self.begin()
        if self.running and self.rng.random() < 0.7:
            self.end(self.running.pop(self.rng.randrange(len(self.running))))
        due = self.backlog.next_due(self.now)
        if due is None or self.waiting or self.running:
            self.now += 1
        else:
            self.now = max(self.now, due) + self.rng.randrange(2)

    def control(self) -> None:
        """Pause or resume something, or withdraw an item that was added; now and then."""
        if self.rng.random() < 0.05:
            self.all_paused = self.rng.random() < 0.3
            self.paused = {key for key in "abc" if self.rng.random() < 0.3}
            self.backlog.pause(self.paused, self.now, everything=self.all_paused)
        if self.rng.random() < 0.02:
            chosen = {i for i in self.fails if self.rng.random() < 0.1}
            waiting = chosen - {e.item_id for e in [*self.waiting, *self.running, *self.finished, *self.withdrawn]}
            found = self.backlog.withdraw(chosen, self.now)
            assert {e.item_id for e in found} == waiting
            self.withdrawn += found

    def begin(self) -> None:
        """Begin some items, which are due, and no more than may run at once."""
        for entry in self.backlog.take(self.now, self.rng.randrange(1, 5)):
            assert entry.due <= self.now
            assert not self.all_paused
            assert entry.key not in self.paused
            self.running.append(entry)
            self.begun += 1
        assert self.limits.concurrency is None or len(self.running) <= self.limits.concurrency
        for key in "abc":
            assert sum(e.key == key for e in self.running) <= self.limits.key_concurrency

    def end(self, entry: Entry) -> None:
        self.backlog.release(entry, self.now)
        if self.fails[entry.item_id] and entry.attempts == 0:
            entry.attempts, entry.due = 1, self.now + 30
            self.backlog.add(entry, self.now)
        else:
            self.finished.append(entry)


@examples(60)
@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 50), st.booleans()), max_size=40),
    st.builds(
        Limits,
        concurrency=st.sampled_from([None, 1, 3]),
        key_concurrency=st.sampled_from([1, 2]),
        rate=st.sampled_from([None, 50.0, 500.0]),
        key_rate=st.sampled_from([None, 40.0]),
    ),
    st.integers(0, 2**32),
)
def test_all_run_in_the_order_of_their_keys_and_within_limits(
    drawn: list[tuple[str | None, int, bool]], limits: Limits, seed: int
) -> None:
    run = Run(drawn, limits, seed)
    for _ in range(2000):
        if len(run.finished) + len(run.withdrawn) == len(drawn):
            break
        run.step()
    assert len(run.finished) + len(run.withdrawn) == len(drawn)
    assert (run.backlog.waiting, run.backlog.running) == (0, 0)
    if limits.key_concurrency == 1:
        for key in "abc":
            own = [e.item_id.int for e in run.finished if e.key == key]
            assert own == sorted(own)
    if limits.rate is not None:
        assert run.begun <= max(1.0, limits.rate) * (run.now / 1000 + 1) + 1


def test_parts_are_the_whole() -> None:
    for limit in range(40):
        assert sum(part(limit, shard, 16) or 0 for shard in range(16)) == limit


def test_a_rate_is_even_and_catches_up_by_one_second_at_most() -> None:
    rate, now, begun = Rate(10), 100.0, []
    while now < 103:
        if rate.ready_at(now) <= now:
            rate.begin(now)
            begun.append(now)
        now += 0.001
    assert 29 <= len(begun) <= 31
    now += 60
    burst = 0
    while rate.ready_at(now) <= now:
        rate.begin(now)
        burst += 1
    assert 9 <= burst <= 11
