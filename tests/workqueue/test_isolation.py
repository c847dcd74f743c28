"""The rule of isolation: a fault of one item, shard or queue does not stop anything else, and failed work is done
later.
"""

import functools
import inspect as python
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.workqueue.conftest import with_queue
from tests.workqueue.working import states, until, until_stored, working
from writetime.clients import database
from writetime.core.config import Queue, Settings
from writetime.core.errors import WritetimeError
from writetime.workqueue import attempts, completed, faults
from writetime.workqueue.bucket_life import Buckets
from writetime.workqueue.dead_items import dead_letters, redrive
from writetime.workqueue.enqueue import Enqueuer, NewItem
from writetime.workqueue.inspect import inspect, inspecting, worker_faults
from writetime.workqueue.items import bucket_of, first_id, shard_of
from writetime.workqueue.queue_tables import QueueTables
from writetime.workqueue.reader import ItemReader
from writetime.workqueue.runner import ShardRunner
from writetime.workqueue.shard_leases import ShardLeases
from writetime.workqueue.worker import Worker
from writetime.workqueue.worker_loop import WorkerLoop

pytestmark = pytest.mark.long

SHARDS = 2
# So many that each shard has some.
ITEMS = 20


class Injected(Exception):
    """A fault that no code foresees."""


def break_method(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, applies: Callable[..., bool], broken: list[int]
) -> None:
    """Let a method raise while it is called for the thing that is broken, and `broken` is not empty."""
    original = getattr(owner, name)

    def check(*args: Any) -> None:
        if broken and applies(*args):
            broken.append(1)
            raise Injected(name)

    async def raising_later(*args: Any, **own: Any) -> Any:
        check(*args)
        return await original(*args, **own)

    def raising(*args: Any, **own: Any) -> Any:
        check(*args)
        return original(*args, **own)

    monkeypatch.setattr(owner, name, raising_later if python.iscoroutinefunction(original) else raising)


def _runner(jobs: str, runner: ShardRunner, *_: Any) -> bool:
    return (runner.queue, runner.lease.row.shard) == (jobs, 0)


def _place(jobs: str, place: Any) -> bool:
    return (place.queue, place.shard) == (jobs, 0)


BOUNDARIES: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "look": (ShardRunner, "_look", _runner),
    "take": (ShardRunner, "take", _runner),
    "next_due": (ShardRunner, "next_due", _runner),
    "offer": (ShardRunner, "offer", _runner),
    "claim": (ShardRunner, "claim", _runner),
    "release": (ShardRunner, "release", _runner),
    "open_new": (Buckets, "open_new", lambda jobs, b: (b._context.queue, b._shard) == (jobs, 0)),
    "poll": (ItemReader, "poll", lambda jobs, r: _place(jobs, r.partition.place)),
    "note": (ItemReader, "_note", lambda jobs, r, _: _place(jobs, r.partition.place)),
    "gain": (WorkerLoop, "_gain", lambda jobs, _, c, lease: (c.queue, lease.row.shard) == (jobs, 0)),
    "write": (QueueTables, "write", lambda jobs, _, place, *rest: _place(jobs, place)),
    "buckets": (QueueTables, "buckets", lambda jobs, _, queue, *rest: queue == jobs),
    "leases": (ShardLeases, "_look", lambda jobs, s: s._queue == jobs),
    "opening": (QueueTables, "queue", lambda jobs, _, queue, *rest: queue == jobs),
}


OF_QUEUES = ("buckets", "leases", "opening")
ALONE = pytest.mark.long_only("together with the others, each is at a queue of its own")


def enqueue_all(settings: Settings, queues: dict[str, str]) -> tuple[set[str], set[str]]:
    """Enqueue items to the queue of each boundary; return the payloads of all, and of those that its fault stops."""
    payloads, stopped = set[str](), set[str]()
    with Enqueuer(settings) as enqueuer:
        for boundary, queue in queues.items():
            own = [f"{boundary} {n}" for n in range(ITEMS)]
            ids = enqueuer.enqueue_many(queue, [NewItem(payload) for payload in own])
            payloads |= {*own}
            for payload, item_id in zip(own, ids, strict=True):
                if boundary in OF_QUEUES or (boundary in BOUNDARIES and shard_of(None, item_id, SHARDS) == 0):
                    stopped.add(payload)
    return payloads, stopped


@pytest.mark.parametrize(
    "boundaries",
    [[*BOUNDARIES], *(pytest.param([name], marks=ALONE) for name in BOUNDARIES)],
    ids=["all", *BOUNDARIES],
)
def test_a_fault_of_one_shard_or_queue_does_not_stop_the_others(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch, boundaries: list[str]
) -> None:
    queues = {name: f"{jobs}-{name}" for name in (*boundaries, "other")}
    shards = Queue(shards=SHARDS, backoff_base_seconds=0.05)
    settings = with_queue(queue_settings, jobs, queues=dict.fromkeys(queues.values(), shards))
    payloads, stopped = enqueue_all(settings, queues)
    broken = {name: [1] for name in boundaries}
    for boundary, times in broken.items():
        owner, name, applies = BOUNDARIES[boundary]
        break_method(monkeypatch, owner, name, functools.partial(applies, queues[boundary]), times)
    faulty = {queues[name] for name in boundaries}
    done: set[Any] = set()
    monkeypatch.setattr(faults, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(faults, "REST_SECONDS", 3.0)
    with working(settings, dict.fromkeys(queues.values(), lambda item: done.add(item.payload))):
        until(lambda: payloads - stopped <= done and all(len(times) > 1 for times in broken.values()))
        until_stored(lambda: faulty <= {row.queue for row in worker_faults(settings) if "Injected" in row.reason})
        for times in broken.values():
            times.clear()
        until(lambda: payloads <= done)
        until_stored(lambda: {row.status for row in states(settings, *faulty).values()} == {"COMPLETED"})


def test_an_item_that_fails_outside_its_handler_is_dead_after_three_tries(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_method(monkeypatch, WorkerLoop, "_process", lambda _, runner, entry: entry.payload == "13", [1])
    with Enqueuer(queue_settings) as enqueuer:
        enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(20)])
    assert Worker(queue_settings, {jobs: lambda item: None}).run(until_idle=True) == {
        "completed": 19,
        "retry": 2,
        "dead": 1,
    }
    [letter] = dead_letters(queue_settings, jobs)
    assert (letter.payload, letter.attempts, letter.error) == ("13", 3, "Injected: _process")


def test_a_worker_until_idle_never_counts_a_shard_that_it_gave_up_as_done(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = with_queue(queue_settings, jobs, {"shards": SHARDS})
    with Enqueuer(settings) as enqueuer:
        ids = enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(30)])
    break_method(monkeypatch, ItemReader, "poll", lambda r: _place(jobs, r.partition.place), [1])
    monkeypatch.setattr(faults, "RETRY_SECONDS", 0.1)
    with pytest.raises(WritetimeError, match=f"queue {jobs}, shard 0: Injected: poll"):
        Worker(settings, {jobs: lambda item: None}).run(until_idle=True)
    assert states(settings, jobs).keys() == {i for i in ids if shard_of(None, i, SHARDS) == 1}


def test_results_and_errors_of_a_handler_affect_only_its_item(queue_settings: Settings, jobs: str) -> None:
    def handle(item: Any) -> Any:
        match item.payload:
            case "lone surrogate":
                return "\ud800"
            case "too large":
                return "x" * (attempts.MAX_RESULT_BYTES + 1)
            case "no Unicode in the error":
                raise ValueError("\ud800")
        return item.payload

    settings = with_queue(queue_settings, jobs, {"shards": 1, "max_attempts": 2})
    odd = ["lone surrogate", "too large", "no Unicode in the error"]
    with Enqueuer(settings) as enqueuer:
        enqueuer.enqueue_many(jobs, [NewItem(payload) for payload in [*odd, *range(10)]])
    assert Worker(settings, {jobs: handle}).run(until_idle=True) == {"completed": 10, "retry": 3, "dead": 3}
    assert len(dead_letters(settings, jobs)) == 3


def insert_odd_rows(settings: Settings, jobs: str, ids: list[uuid.UUID], *, any_bytes: bool) -> uuid.UUID:
    """Insert rows that no code of ours writes; return the id of an item that they complete."""
    odd_status, key = "blobAsText(0xeda082)", "blobAsText(0xeda08262)"
    payloads = ["blobAsText(0x22eda08222)", "blobAsText(0x22c08022)", "'10'"]
    if not any_bytes:
        odd_status, key, payloads = "'\x01'", "'\x01b'", ["'\"\x01\"'", "'{'", "'10'"]
    keyspace = settings.cassandra.keyspace
    place = f"0, {bucket_of(ids[0], settings.workqueue.bucket_seconds)}"
    now = ids[0].int >> 80
    with database.connect(settings) as session:

        def insert(table: str, item_id: uuid.UUID, columns: str, values: str) -> None:
            session.execute(
                f"INSERT INTO {keyspace}.{table} (queue, shard, bucket, item_id, {columns}) "
                f"VALUES (%s, {place}, %s, {values})",
                [jobs, item_id],
            )

        for item_id, status in zip(ids, ["'BANANA'", "''", odd_status, "'completed'"], strict=False):
            insert("queue_state", item_id, "status, attempts", f"{status}, -5")
        for n, payload in enumerate(payloads):
            insert("queue_items", first_id(now + n), "key, payload", f"{key}, {payload}")
        insert("queue_items", uuid.UUID(int=2**127), "payload", "'1'")
        done = first_id(now + 100)
        insert("queue_items", done, "key, payload", f"{key}, {payloads[0]}")
        insert("queue_state", done, "status, worker, result, at", f"'COMPLETED', {key}, {key}, {2**63 - 1}")
    return done


def test_rows_that_no_code_of_ours_wrote_stop_nothing(
    queue_settings: Settings, jobs: str, spark: SparkSession, pytestconfig: pytest.Config
) -> None:
    settings = with_queue(queue_settings, jobs, {"shards": 1})
    with Enqueuer(settings) as enqueuer:
        ids = enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(10)])
    # ScyllaDB refuses text that is not UTF-8 (`make_from_blob_function` in `cql3/functions`).
    any_bytes = not pytestconfig.getoption("--scylla")
    odd = insert_odd_rows(settings, jobs, ids, any_bytes=any_bytes)
    done: list[Any] = []
    assert inspect(settings, jobs).depth >= 12
    Worker(settings, {jobs: lambda item: done.append(item.payload)}).run(until_idle=True)
    assert sorted(done) == list(range(11))
    assert len(dead_letters(settings, jobs)) == 2
    assert redrive(settings, jobs) == 2
    with inspecting(settings) as audit:
        places = list(audit.buckets(jobs))
    read = completed.read(spark, settings, places)
    assert completed.faults(read) == {}
    rows = {row.item_id: row for row in completed.sound(read).collect()}
    assert {str(i) for i in [*ids, odd]} < rows.keys()
    assert len(rows) == 12
    shown = r"\xed\xa0\x82b" if any_bytes else "\x01b"
    assert [rows[str(odd)][name] for name in ("key", "worker", "result")] == [shown] * 3
