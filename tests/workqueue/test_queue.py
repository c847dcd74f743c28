"""Queues on a real database: items run, fail, are delayed, die and are redriven; buckets are closed and dropped."""

import asyncio
import threading
import time
from typing import Any
from uuid import UUID

import pytest

from tests.workqueue.conftest import with_queue
from tests.workqueue.working import states, until, until_stored, working
from writetime.clients import database
from writetime.core.config import Queue, Settings
from writetime.core.errors import WritetimeError
from writetime.workqueue import Enqueuer, GiveUp, Item, NewItem, Worker, inspect, redrive
from writetime.workqueue.dead_items import dead_letters
from writetime.workqueue.enqueue import AsyncEnqueuer, EnqueueUnknown, InvalidItem, TooLarge
from writetime.workqueue.items import LAST_ID, NO_ID, ItemPartition, bucket_of, first_id, time_of
from writetime.workqueue.queue_tables import QueueTables

pytestmark = pytest.mark.long


def test_items_run_once_in_the_order_of_their_keys(queue_settings: Settings, jobs: str) -> None:
    seen: list[tuple[str | None, int]] = []

    def handle(item: Item) -> dict[str, Any]:
        seen.append((item.key, item.payload["n"]))
        return {"n": item.payload["n"], "attempt": item.attempt}

    with Enqueuer(queue_settings) as enqueuer:
        ids = enqueuer.enqueue_many(jobs, [NewItem({"n": n}, key=f"k{n % 5}") for n in range(60)])
        ids += [enqueuer.enqueue(jobs, {"n": n}) for n in range(60, 80)]
    outcomes = Worker(queue_settings, {jobs: handle}).run(until_idle=True)
    assert outcomes == {"completed": 80}
    assert sorted(n for _, n in seen) == list(range(80))
    for k in range(5):
        own = [n for key, n in seen if key == f"k{k}"]
        assert own == sorted(own)
    found = states(queue_settings, jobs)
    assert found.keys() == set(ids)
    assert {row.status for row in found.values()} == {"COMPLETED"}
    assert found[ids[7]].result == '{"n":7,"attempt":1}'
    # Nothing is left, and a second worker finds nothing.
    assert inspect(queue_settings, jobs).depth == 0
    assert Worker(queue_settings, {jobs: handle}).run(until_idle=True) == {}


def test_failures_are_repeated_then_dead_then_redriven(queue_settings: Settings, jobs: str) -> None:
    settings = with_queue(queue_settings, jobs, {"max_attempts": 3})
    broken = {"twice": 2, "always": 99}

    async def handle(item: Item) -> None:
        if item.payload == "never":
            raise GiveUp("no such thing")
        if item.attempt <= broken.get(item.payload, 0):
            raise ValueError("not now")

    with Enqueuer(settings) as enqueuer:
        ids = {p: enqueuer.enqueue(jobs, p, key="same") for p in ("twice", "always", "never", "last")}
    outcomes = Worker(settings, {jobs: handle}).run(until_idle=True)
    # What is dead does not hold its key up.
    assert outcomes == {"completed": 2, "retry": 2 + 2, "dead": 2}
    found = states(settings, jobs)
    assert {p: (found[i].status, found[i].attempts) for p, i in ids.items()} == {
        "twice": ("COMPLETED", 3),
        "always": ("DEAD", 3),
        "never": ("DEAD", 1),
        "last": ("COMPLETED", 1),
    }
    letters = dead_letters(settings, jobs)
    assert [(x.item_id, x.error) for x in letters] == [
        (ids["always"], "ValueError: not now"),
        (ids["never"], "no such thing"),
    ]
    broken.clear()
    assert inspect(settings, jobs).dead_letters == 2
    assert redrive(settings, jobs) == 2
    assert redrive(settings, jobs) == 0
    assert inspect(settings, jobs).received == 2
    assert Worker(settings, {jobs: handle}).run(until_idle=True) == {"completed": 1, "dead": 1}
    assert inspect(settings, jobs).redriven == 2


def test_a_delayed_item_runs_when_it_is_due_and_delays_nothing(queue_settings: Settings, jobs: str) -> None:
    begun: dict[str, float] = {}
    with Enqueuer(queue_settings) as enqueuer:
        # The delay begins within the call, which may take a while.
        enqueued = time.monotonic()
        enqueuer.enqueue(jobs, "later", key="k", delay_seconds=2.0)
        enqueuer.enqueue(jobs, "now", key="k")
    with working(queue_settings, {jobs: lambda item: begun.setdefault(item.payload, time.monotonic())}):
        until(lambda: len(begun) == 2)
    assert begun["now"] < begun["later"]
    assert begun["later"] - enqueued > 1.9


def test_shards_are_shared_out_and_taken_over(queue_settings: Settings, jobs: str) -> None:
    def owners() -> dict[int, str]:
        return inspect(queue_settings, jobs).owners

    count = 0

    async def handle(item: Item) -> None:
        nonlocal count
        await asyncio.sleep(0.01)
        count += 1

    with Enqueuer(queue_settings) as enqueuer, working(queue_settings, {jobs: handle}):
        until_stored(lambda: len(owners()) == 4)
        with working(queue_settings, {jobs: handle}):
            until_stored(lambda: sorted(list(owners().values()).count(o) for o in set(owners().values())) == [2, 2])
            enqueuer.enqueue_many(jobs, [NewItem(n, key=str(n % 9)) for n in range(100)])
        # The second has stopped gracefully: no lease has to expire.
        until_stored(lambda: len(owners()) == 4 and len(set(owners().values())) == 1)
        until_stored(lambda: inspect(queue_settings, jobs).depth == 0)
    assert count == 100
    assert owners() == {}


def test_a_stop_returns_items_that_were_not_started(queue_settings: Settings, jobs: str) -> None:
    begun = threading.Event()

    def slow(item: Item) -> str:
        begun.set()
        time.sleep(0.3)
        return "done"

    with Enqueuer(queue_settings) as enqueuer:
        enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(40)])
    with working(queue_settings, {jobs: slow}):
        until(begun.is_set)
    found = states(queue_settings, jobs)
    assert 0 < sum(row.status == "COMPLETED" for row in found.values()) < 40
    assert {(row.status, row.attempts) for row in found.values()} <= {("COMPLETED", 1), ("RETRY", 0)}
    outcomes = Worker(queue_settings, {jobs: lambda _: "done"}).run(until_idle=True)
    assert sum(row.status == "COMPLETED" for row in states(queue_settings, jobs).values()) == 40
    assert outcomes["completed"] < 40


def test_limits_and_priorities(queue_settings: Settings, jobs: str) -> None:
    settings = with_queue(queue_settings, jobs, {"concurrency": 4, "shards": 2, "rate": 40.0}, threads=16)
    urgent = Queue(shards=2, priority=1)
    workqueue = settings.workqueue.model_copy(update={"queues": {**settings.workqueue.queues, "urgent": urgent}})
    settings = settings.model_copy(update={"workqueue": workqueue})
    running, most, order = 0, 0, []

    async def limited(item: Item) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        order.append("limited")
        await asyncio.sleep(0.05)
        running -= 1

    async def at_once(item: Item) -> None:
        order.append("urgent")

    with Enqueuer(settings) as enqueuer:
        enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(60)])
        enqueuer.enqueue_many("urgent", [NewItem(n) for n in range(60)])
    outcomes = Worker(settings, {jobs: limited, "urgent": at_once}).run(until_idle=True)
    assert outcomes == {"completed": 120}
    assert most <= 4
    # A rate leaves room for the others, whatever came first.
    assert order.index("urgent") < 20


def test_late_items_are_found_by_closing_and_by_dropping(queue_settings: Settings, jobs: str) -> None:
    quick = {"bucket_seconds": 1, "close_after_seconds": 1.0, "enqueue_timeout_seconds": 0.5}
    settings = with_queue(queue_settings, jobs, {"shards": 1}, keep_closed_hours=4 / 3600, **quick)
    # A busy machine may take longer than half a second.
    patient = with_queue(queue_settings, jobs, {"shards": 1}, bucket_seconds=1)
    done: list[str] = []
    keyspace = settings.cassandra.keyspace

    def registered() -> dict[int, Any]:
        found = session.execute(f"SELECT bucket, closed FROM {keyspace}.queue_buckets WHERE queue = %s", [jobs])
        return {int(row.bucket.timestamp()): row.closed for row in found}

    def insert_late(name: str, like: UUID) -> None:
        """Insert an item before one that was finished, as by an enqueuer that was stopped for a while."""
        place = ItemPartition(jobs, 0, bucket_of(like, 1))
        values = (*place, first_id(like.int >> 80), f'"{name}"')
        names = "queue, shard, bucket, item_id, payload"
        session.execute(f"INSERT INTO {keyspace}.queue_items ({names}) VALUES (%s, %s, %s, %s, %s)", values)

    # One session: a closed bucket is dropped after few seconds, and each new session may take one.
    with (
        database.connect(settings) as session,
        Enqueuer(patient) as enqueuer,
        working(settings, {jobs: lambda item: done.append(item.payload)}),
    ):
        first = enqueuer.enqueue(jobs, "first")
        until(lambda: done == ["first"])
        insert_late("late", first)
        until(lambda: done == ["first", "late"])
        until(lambda: all(registered().values()))
        # The next millisecond, in the same bucket.
        insert_late("very late", UUID(int=first.int ^ (1 << 80)))
        until(lambda: "very late" in done)
        until(lambda: not registered())
        place = (jobs, 0, bucket_of(first, 1))
        for table in ("queue_items", "queue_state"):
            query = f"SELECT item_id FROM {keyspace}.{table} WHERE queue = %s AND shard = %s AND bucket = %s"
            assert not list(session.execute(query, place))
    assert sorted(done) == ["first", "late", "very late"]


def test_a_repeated_call_with_the_same_id_is_one_item(queue_settings: Settings, jobs: str) -> None:
    with Enqueuer(queue_settings) as enqueuer:
        item_id = enqueuer.enqueue(jobs, 1, key="k")
        assert enqueuer.enqueue(jobs, 1, key="k", item_id=item_id) == item_id
        late = time_of(item_id) + 367 * 86_400_000
        for wrong in (UUID(int=5), first_id(1000), first_id(time_of(item_id) - 60_000), first_id(late)):
            with pytest.raises(InvalidItem, match="UUID of version 7 whose time is at most 30 s before the database's"):
                enqueuer.enqueue(jobs, 1, item_id=wrong)
        with pytest.raises(InvalidItem, match="cannot be JSON"):
            enqueuer.enqueue(jobs, {1, 2})
        with pytest.raises(TooLarge, match="more than the 262144 allowed"):
            enqueuer.enqueue(jobs, "x" * 300_000)
        with pytest.raises(InvalidItem, match="a key must have 1 to 1024 bytes"):
            enqueuer.enqueue(jobs, 1, key="")
    assert inspect(queue_settings, jobs).depth == 1


def test_a_delayed_item_is_repeated_with_its_id(queue_settings: Settings, jobs: str) -> None:
    begun: list[float] = []
    with Enqueuer(queue_settings) as enqueuer:
        enqueued = time.monotonic()
        item_id = enqueuer.enqueue(jobs, 1, key="k", delay_seconds=3.0)
        assert enqueuer.enqueue(jobs, 1, key="k", item_id=item_id) == item_id
        with pytest.raises(InvalidItem, match="its id has the time when it is due"):
            enqueuer.enqueue(jobs, 1, key="k", item_id=item_id, delay_seconds=3.0)
        far = enqueuer.enqueue(jobs, 2, delay_seconds=366 * 86_400)
        assert enqueuer.enqueue(jobs, 2, item_id=far) == far
    with working(queue_settings, {jobs: lambda item: begun.append(time.monotonic())}):
        until(lambda: len(begun) == 1)
    assert begun[0] - enqueued > 2.9
    state = inspect(queue_settings, jobs)
    assert (state.received, state.delayed) == (1, 1)


@pytest.mark.parametrize("delay", [-1.0, 366 * 86_400 + 1.0, 2.6e11, 9e18, 1e308, float("inf"), float("nan")])
def test_a_delay_has_0_seconds_to_366_days(queue_settings: Settings, jobs: str, delay: float) -> None:
    with (
        Enqueuer(queue_settings) as enqueuer,
        pytest.raises(InvalidItem, match="a delay must have 0 to 31622400 seconds"),
    ):
        enqueuer.enqueue_many(jobs, [NewItem(1), NewItem(2, delay_seconds=delay)])
    assert inspect(queue_settings, jobs).depth == 0


def test_the_longest_delay_and_the_deepest_payload_are_taken(queue_settings: Settings, jobs: str) -> None:
    def nested(levels: int, inner: Any = 1) -> Any:
        for n in range(levels):
            inner = [inner, inner if levels < 3 else 2] if n % 2 else {"a": inner}
        return inner

    done: list[Any] = []
    with Enqueuer(queue_settings) as enqueuer:
        enqueuer.enqueue(jobs, 1, delay_seconds=366 * 86_400)
        enqueuer.enqueue_many(jobs, [NewItem(nested(250)), NewItem([nested(1)] * 300)])
        for levels in (251, 700, 990, 5000):
            with pytest.raises(InvalidItem, match="the payload is nested more than 250 levels deep"):
                enqueuer.enqueue(jobs, nested(levels))
    with working(queue_settings, {jobs: lambda item: done.append(item.payload)}):
        until(lambda: len(done) == 2)
    assert nested(250) in done
    assert inspect(queue_settings, jobs).delayed == 1


def test_no_stored_bucket_time_or_payload_breaks_a_worker(queue_settings: Settings, jobs: str) -> None:
    settings = with_queue(queue_settings, jobs, {"shards": 1})
    other = f"{jobs}-other"
    keyspace = settings.cassandra.keyspace
    ends = [2**63 - 1, 9 * 10**18, 253_402_300_800_000, -62_135_596_800_001, -(2**63)]
    done: list[Any] = []
    with Enqueuer(settings) as enqueuer:
        poisoned = enqueuer.enqueue_many(jobs, [NewItem("poisoned", key=f"k{n}") for n in range(len(ends))])
    with database.connect(settings) as session:

        def insert(table: str, **values: Any) -> None:
            columns, marks = ", ".join(values), ", ".join(["%s"] * len(values))
            session.execute(
                f"INSERT INTO {keyspace}.{table} (queue, shard, {columns}) VALUES (%s, 0, {marks})",
                [jobs, *values.values()],
            )

        now = poisoned[0].int >> 80
        for n, (item_id, at) in enumerate(zip(poisoned, ends, strict=True)):
            bucket = bucket_of(item_id, settings.workqueue.bucket_seconds)
            insert("queue_items", bucket=at, item_id=first_id(now + n), payload="1")
            insert("queue_buckets", bucket=at)
            insert("queue_buckets", bucket=-at // 3, closed=at)
            insert("queue_items", bucket=bucket, item_id=first_id(now + 100 + n), payload="1", not_before=at)
            insert("queue_state", bucket=bucket, item_id=item_id, status="RETRY", due=at)
        bucket = bucket_of(poisoned[0], settings.workqueue.bucket_seconds)
        for n, payload in enumerate(["{", "", None, "[" * 100_000]):
            insert("queue_items", bucket=bucket, item_id=first_id(now + 200 + n), payload=payload)
    with Enqueuer(settings) as enqueuer:
        enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(20)])
        enqueuer.enqueue(other, "other")
    with working(settings, dict.fromkeys((jobs, other), lambda item: done.append(item.payload))):
        until(lambda: {*range(20), "other"} <= set(done))
        until_stored(lambda: len(dead_letters(settings, jobs)) == 4)
    state = inspect(settings, jobs)
    assert state.dead_letters == 4
    letters = {letter.payload[:1] for letter in dead_letters(settings, jobs)}
    assert letters == {"{", "", "["}


def test_items_that_were_not_sent_have_no_ids_to_repeat(queue_settings: Settings, jobs: str) -> None:
    class Silent(QueueTables):
        def __init__(self) -> None:
            pass

        async def now(self) -> int:
            await asyncio.sleep(60)
            return 0

    hasty = queue_settings.workqueue.model_copy(update={"enqueue_timeout_seconds": 0.05})
    enqueuer = AsyncEnqueuer(Silent(), hasty)
    with pytest.raises(EnqueueUnknown, match="nothing was enqueued") as unknown:
        asyncio.run(enqueuer.enqueue(jobs, [NewItem(1)]))
    assert unknown.value.item_ids == []
    assert " id" not in str(unknown.value)


def test_a_queue_keeps_its_shards(queue_settings: Settings, jobs: str) -> None:
    with Enqueuer(queue_settings) as enqueuer:
        enqueuer.enqueue(jobs, 1)
    other = with_queue(queue_settings, jobs, {"shards": 9})
    assert inspect(other, jobs).shards == 4
    limited = with_queue(queue_settings, jobs, {"shards": 2, "concurrency": 2})
    with pytest.raises(WritetimeError, match="concurrency 2 is less than its 4 shards"):
        Worker(limited, {jobs: print}).run(until_idle=True)


def test_weak_reads_are_refused(queue_settings: Settings, jobs: str) -> None:
    weak = queue_settings.cassandra.model_copy(update={"consistency": "LOCAL_ONE"})
    with database.connect(queue_settings) as session, pytest.raises(WritetimeError, match="LOCAL_QUORUM or more"):
        QueueTables(session, queue_settings.model_copy(update={"cassandra": weak}))


def test_items_of_several_pages_are_read_at_once(queue_settings: Settings, jobs: str) -> None:
    """The database ends pages where it likes."""
    settings = with_queue(queue_settings, jobs, {"shards": 1})
    with Enqueuer(settings) as enqueuer:
        ids = enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(30)])

    async def read(tables: QueueTables) -> list[UUID]:
        buckets = await tables.buckets(jobs)
        items = [await tables.items(place, NO_ID, LAST_ID) for place in buckets]
        return [item.item_id for of_bucket in items for item in of_bucket]

    with database.connect(settings) as session:
        session.default_fetch_size = 7
        tables = QueueTables(session, settings)
        assert asyncio.run(read(tables)) == ids
        assert jobs in asyncio.run(tables.queues())
