"""The backlog's guarantees, for generated items: order of keys, limits, nothing forgotten."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from writetime.workqueue.backlog import Backlog
from writetime.workqueue.items import Entry, IdMaker, Place
from writetime.workqueue.limits import Rate, part

PLACE = Place("q", 0, 0)


@examples(60)
@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 50), st.booleans()), max_size=40),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([1, 2]),
    st.sampled_from([None, 50.0, 500.0]),
    st.sampled_from([None, 40.0]),
    st.integers(0, 2**32),
)
def test_all_run_in_the_order_of_their_keys_and_within_limits(
    drawn: list[tuple[str | None, int, bool]],
    concurrency: int | None,
    key_concurrency: int,
    rate: float | None,
    key_rate: float | None,
    seed: int,
) -> None:
    rng, ids = random.Random(seed), IdMaker()
    backlog = Backlog(concurrency=concurrency, rate=rate, key_concurrency=key_concurrency, key_rate=key_rate)
    entries = []
    for n, (key, due, fails) in enumerate(drawn):
        entries.append((Entry(PLACE, ids.make(n * 1000), key, "1", due=due), fails))
    fails = {e.item_id: f for e, f in entries}
    waiting = [e for e, _ in entries]
    now, running, begun, finished = 0, [], [], []
    for _ in range(2000):
        if len(finished) == len(drawn):
            break
        while waiting and rng.random() < 0.5:
            backlog.add(waiting.pop(0), now)
        for entry in backlog.take(now, rng.randrange(1, 5)):
            assert entry.due <= now
            running.append(entry)
            begun.append((now, entry.key))
        assert concurrency is None or len(running) <= concurrency
        for key in "abc":
            assert sum(e.key == key for e in running) <= key_concurrency
        if running and rng.random() < 0.7:
            entry = running.pop(rng.randrange(len(running)))
            backlog.release(entry, now)
            if fails[entry.item_id] and entry.attempts == 0:
                entry.attempts, entry.due = 1, now + 30
                backlog.add(entry, now)
            else:
                finished.append(entry)
        due = backlog.next_due(now)
        now = now + 1 if due is None or waiting or running else max(now, due) + rng.randrange(2)
    assert len(finished) == len(drawn)
    assert (backlog.waiting, backlog.running) == (0, 0)
    if key_concurrency == 1:
        for key in "abc":
            own = [e.item_id.int for e in finished if e.key == key]
            assert own == sorted(own)
    if rate is not None:
        assert len(begun) <= max(1.0, rate) * (now / 1000 + 1) + 1


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
