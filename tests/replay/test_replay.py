"""Publishers and subscribers without faults: results, messages and refusals."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cassandra.query import PreparedStatement
from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError

from tests.replay.processing import done
from tests.support.proxy import Proxy
from tests.support.waiting import PATIENCE_SECONDS, wait_for
from writetime.clients import database
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.replay import Batch, Effects, Publisher, Subscriber, check, lag, rebuild, replay, seek
from writetime.replay import batches as batches_of_queues
from writetime.replay.batches import Batches, DamagedBatch, NoBatch, Seal
from writetime.replay.blocks import BLOCK_BYTES, decode, encode
from writetime.replay.coordination import Coordination, coordination

pytestmark = pytest.mark.long


@pytest.fixture
def kazoo(replay_settings: Settings) -> Iterator[KazooClient]:
    client = KazooClient(replay_settings.zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def node(kazoo: KazooClient, path: str) -> str:
    answer: Any = kazoo.get(path)
    return answer[0].decode()


def is_deleted(kazoo: KazooClient, path: str) -> bool:
    """Delete a node with all below it, unless another client creates one there meanwhile."""
    try:
        kazoo.delete(path, recursive=True)
    except NotEmptyError:
        return False
    return True


def test_blocks() -> None:
    r = random.Random(1)
    for sizes in ([], [0], [0, 0, 1], [BLOCK_BYTES - 4], [BLOCK_BYTES - 3], [3, 5 * BLOCK_BYTES, 7], [10] * 10_000):
        items = [r.randbytes(size) for size in sizes]
        blocks, size, digest = encode(items)
        assert decode(blocks) == (items, digest)
        assert size == sum(sizes) + 4 * len(sizes)
        if len(blocks) > 1:
            with pytest.raises(ValueError, match=r"after the last block|requires"):
                decode(blocks[:-1])


def test_the_columns_of_a_seal_are_in_the_order_of_its_fields() -> None:
    """Two of them have one type, so a wrong order would be written, and read back, without an error."""
    assert [{"size": "bytes"}.get(field.name, field.name) for field in fields(Seal)] == list(batches_of_queues._COLUMNS)


def test_published_read_and_replayed(replay_settings: Settings, queue: str, kazoo: KazooClient) -> None:
    r = random.Random(2)
    sent = [[r.randbytes(r.randrange(30)) for _ in range(count)] for count in (1, 0, 100, 3)]
    sent[3][1] = r.randbytes(20 * BLOCK_BYTES)
    with Publisher(replay_settings, queue) as publisher:
        assert [publisher.publish(items) for items in sent] == [1, 2, 3, 4]
    assert node(kazoo, f"/queues/{queue}") == f"{queue}-4"
    for name in ("one", "other"):
        batches = done(replay_settings, queue, name)
        assert [(b.n, b.id, b.items) for b in batches] == [(n, f"{queue}-{n}", i) for n, i in enumerate(sent, 1)]
        assert node(kazoo, f"/queues/{queue}/processors/{name}") == f"{queue}-4"
    assert [b.items for b in replay(replay_settings, queue)] == sent
    assert [b.n for b in replay(replay_settings, queue, 2, 3)] == [2, 3]
    assert done(replay_settings, queue, "one") == []
    found = check(replay_settings, queue)
    assert (found.batches, found.items, found.faults) == (4, 104, [])
    with pytest.raises(NoBatch, match="has the batches 1 to 4, not 3 to 5"):
        list(replay(replay_settings, queue, 3, 5))


def test_a_batch_that_is_published_again(replay_settings: Settings, queue: str) -> None:
    with Publisher(replay_settings, queue) as one, Publisher(replay_settings, queue) as other:
        assert one.publish([b"a"], producer="p", sequence=1) == 1
        assert other.publish([b"a"], producer="p", sequence=1) == 1
        assert other.publish([b"a"], producer="another", sequence=1) == 2
        assert one.publish([b"b"], producer="p", sequence=5) == 3
        assert other.publish([b"b"], producer="p", sequence=5) == 3
        with pytest.raises(WritetimeError, match=r"sequence 5 with other items \(batch 3\)"):
            one.publish([b"c"], producer="p", sequence=5)
        with pytest.raises(WritetimeError, match=r"has published sequence 5 \(batch 3\)"):
            one.publish([b"a"], producer="p", sequence=4)
        with pytest.raises(WritetimeError, match="must be given together"):
            one.publish([b"a"], producer="p")
        assert [one.last_sequence(p) for p in ("p", "another", "nobody")] == [5, 1, None]
    assert len(list(replay(replay_settings, queue))) == 3


def test_the_last_sequence_after_a_publisher_that_was_killed(
    replay_settings: Settings, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed after its batch was sealed: the batch was not recorded, and ZooKeeper does not have it."""
    with Publisher(replay_settings, queue) as one, Publisher(replay_settings, queue) as other:
        one.publish([b"a"], producer="p", sequence=1)
        assert other.last_sequence("p") == 1
        with monkeypatch.context() as killed:
            killed.setattr(Batches, "record", lambda *_: None)
            killed.setattr(Coordination, "advance", lambda *_: None)
            one.publish([b"b"], producer="p", sequence=2)
        assert other.last_sequence("p") == 2


def test_many_publishers_at_once(replay_settings: Settings, queue: str) -> None:
    # Two threads are the same producer. They publish each sequence together: a sequence that a thread has not published
    # is refused once the other has published the next one.
    together = [threading.Barrier(2, timeout=120) for _ in range(2)]

    def publish(number: int) -> list[int]:
        producer = number // 2
        numbers: list[int] = []
        with Publisher(replay_settings, queue) as publisher:
            for i in range(8):
                together[producer].wait()
                numbers.append(publisher.publish([f"{producer}-{i}".encode()], producer=f"p{producer}", sequence=i))
        return numbers

    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(publish, range(4)))
    assert numbers[0] == numbers[1]
    assert numbers[2] == numbers[3]
    assert sorted(numbers[0] + numbers[2]) == list(range(1, 17))
    assert {b.n: b.items for b in replay(replay_settings, queue)} == {
        n: [f"{p}-{i}".encode()] for p in (0, 1) for i, n in enumerate(numbers[2 * p])
    }


def test_a_handler_that_fails_leaves_the_cursor(replay_settings: Settings, queue: str) -> None:
    with Publisher(replay_settings, queue) as publisher:
        for i in range(3):
            publisher.publish([b"%d" % i])

    def fail_at_2(batch: Batch) -> None:
        assert batch.n != 2, "no"

    with Subscriber(replay_settings, queue, "p") as subscriber, pytest.raises(AssertionError):
        subscriber.run(fail_at_2, until_idle=True)
    (found,) = lag(replay_settings, queue)
    assert (found.processor, found.done, found.batches) == ("p", 1, 2)
    assert 0 < found.seconds < 60
    assert [b.n for b in done(replay_settings, queue, "p")] == [2, 3]
    assert [(x.batches, x.seconds) for x in lag(replay_settings, queue)] == [(0, 0.0)]


def test_the_lag_does_not_read_more_of_a_longer_queue(
    replay_settings: Settings, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("writetime.replay.batches.ERA", 2)
    statements: list[object] = []
    answer = Batches._run

    def run(self: Batches, statement: PreparedStatement, *values: Any, **options: Any) -> list[Any]:
        statements.append(statement)
        return answer(self, statement, *values, **options)

    costs = []
    with Publisher(replay_settings, queue) as publisher:
        for count in (3, 12):
            for i in range(count):
                publisher.publish([b"%d" % i])
            seek(replay_settings, queue, "p", 2)
            with monkeypatch.context() as patch:
                patch.setattr(Batches, "_run", run)
                (found,) = lag(replay_settings, queue)
            costs.append((found.batches, len(statements)))
            statements.clear()
    (first, cost), (second, cost_later) = costs
    assert (first, second) == (2, 14)
    assert cost == cost_later > 0


def test_seek(replay_settings: Settings, queue: str) -> None:
    times = []
    with Publisher(replay_settings, queue) as publisher:
        for i in range(5):
            times.append(datetime.now(UTC))
            publisher.publish([b"%d" % i])
            time.sleep(0.01)
    done(replay_settings, queue, "p")
    assert seek(replay_settings, queue, "p", 4) == 4
    assert [b.n for b in done(replay_settings, queue, "p")] == [4, 5]
    for i, at in enumerate(times):
        assert seek(replay_settings, queue, "p", at) == i + 1
    assert seek(replay_settings, queue, "p", times[0] - timedelta(days=1)) == 1
    assert seek(replay_settings, queue, "new", datetime.now(UTC) + timedelta(days=1)) == 6
    assert done(replay_settings, queue, "new") == []
    for to in (0, 7):
        with pytest.raises(NoBatch, match=f"not {to}"):
            seek(replay_settings, queue, "p", to)


def test_seek_skips_no_batch_of_a_publisher_with_a_late_answer(replay_settings: Settings, queue: str) -> None:
    """The database's time arrives late, so the time in the seal is before the call that publishes the batch."""
    with Proxy(replay_settings.cassandra, random.Random(1)) as proxy:
        cassandra = replay_settings.cassandra.model_copy(update={"contact_points": ["127.0.0.1"], "port": proxy.port})
        with Publisher(replay_settings.model_copy(update={"cassandra": cassandra}), queue) as publisher:
            proxy.delay = 0.5
            publisher.publish([b"first"])
            proxy.delay = 0.0
            began = datetime.now(UTC)
            assert publisher.publish([b"second"]) == 2
    second = replay(replay_settings, queue, 2)
    assert next(iter(second)).seal.published_at < began
    assert seek(replay_settings, queue, "p", began) == 2


def test_seek_skips_no_batch_of_a_publisher_that_paused(
    replay_settings: Settings, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the time in the seal, and the seal."""
    times: list[datetime] = []
    original = Batches.seal

    def paused(batches: Batches, seal: Seal) -> Seal:
        times.append(datetime.now(UTC))
        return original(batches, seal)

    monkeypatch.setattr(Batches, "seal", paused)
    with Publisher(replay_settings, queue) as publisher:
        for n in range(1, 21):
            assert publisher.publish([b"%d" % n]) == n
    assert len(times) == 20
    for n, at in enumerate(times, 1):
        # A batch of the same millisecond may come before it.
        assert n - 1 <= seek(replay_settings, queue, "p", at) <= n


def test_a_subscriber_at_work_is_woken_and_follows_a_seek(replay_settings: Settings, queue: str) -> None:
    slow = replay_settings.model_copy(update={"replay": replay_settings.replay.model_copy(update={"poll_seconds": 60})})
    found: list[int] = []
    stop = threading.Event()
    with Publisher(slow, queue) as publisher, Subscriber(slow, queue, "p") as subscriber, ThreadPoolExecutor(1) as pool:
        running = pool.submit(subscriber.run, lambda b: found.append(b.n), stop)
        try:
            for n in (1, 2, 3):
                publisher.publish([b"x"])
                wait_for(lambda n=n: found[-1:] == [n])
            seek(slow, queue, "p", 2)
            publisher.publish([b"x"])
            wait_for(lambda: len(found) >= 6)
            # It is idle, and nothing is published.
            for to in (1, 3, 1):
                seek(slow, queue, "p", to)
                wait_for(lambda: found[-1] == 4 and not lag(slow, queue)[0].batches)
        finally:
            stop.set()
            publisher.publish([b"the end"])
        running.result(30)
    assert found[:16] == [1, 2, 3, *(2, 3, 4), *(1, 2, 3, 4), *(3, 4), *(1, 2, 3, 4)]


def test_a_seek_during_a_batch_comes_before_the_next_one(replay_settings: Settings, queue: str) -> None:
    found: list[int] = []

    def handle(batch: Batch) -> None:
        found.append(batch.n)
        if found == [1, 2]:
            seek(replay_settings, queue, "p", 5)
        if found == [1, 2, 5]:
            seek(replay_settings, queue, "p", 1)

    with Publisher(replay_settings, queue) as publisher, Subscriber(replay_settings, queue, "p") as subscriber:
        for _ in range(5):
            publisher.publish([b"x"])
        subscriber.run(handle, until_idle=True)
    assert found == [1, 2, 5, 1, 2, 3, 4, 5]


def test_a_seek_to_the_first_batch_is_not_undone_by_the_copy(
    replay_settings: Settings, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Publisher(replay_settings, queue) as publisher:
        for _ in range(3):
            publisher.publish([b"x"])
    assert len(done(replay_settings, queue, "p")) == 3
    with monkeypatch.context() as killed:
        # It was killed before it wrote the copy, or another write of the copy came after it.
        killed.setattr(Batches, "keep_cursor", lambda *_: None)
        seek(replay_settings, queue, "p", 1)
    assert rebuild(replay_settings, queue) == (3, [])
    assert [b.n for b in done(replay_settings, queue, "p")] == [1, 2, 3]


def test_zookeeper_is_restored(replay_settings: Settings, queue: str, kazoo: KazooClient) -> None:
    with Publisher(replay_settings, queue) as publisher:
        for i in range(3):
            publisher.publish([b"%d" % i])
        done(replay_settings, queue, "p")
        kazoo.delete(f"/queues/{queue}", recursive=True)
        assert publisher.publish([b"3"]) == 4
        assert node(kazoo, f"/queues/{queue}") == f"{queue}-4"
        # The cursor is restored from its copy.
        assert [b.n for b in done(replay_settings, queue, "p")] == [4]
        kazoo.delete(f"/queues/{queue}", recursive=True)
        assert rebuild(replay_settings, queue) == (4, ["p"])
        assert node(kazoo, f"/queues/{queue}/processors/p") == f"{queue}-4"
        # From an older time, and from a later one than the database's.
        kazoo.set(f"/queues/{queue}", f"{queue}-2".encode())
        assert rebuild(replay_settings, queue) == (4, [])
        assert publisher.publish([b"4"]) == 5
        kazoo.set(f"/queues/{queue}", f"{queue}-9".encode())
        with pytest.raises(NoBatch, match=f"the database has no batch {queue}-9"):
            publisher.publish([b"5"])
        kazoo.set(f"/queues/{queue}", b"what")
        with pytest.raises(WritetimeError, match=f"/queues/{queue} is b'what', not {queue}-<number>"):
            publisher.publish([b"5"])


def test_a_batch_that_differs_from_its_seal(replay_settings: Settings, queue: str) -> None:
    with Publisher(replay_settings, queue) as publisher:
        publisher.publish([b"fine"])
        publisher.publish([b"x" * 100])
    keyspace = replay_settings.cassandra.keyspace
    with database.connect(replay_settings) as session:
        seal = Batches(session, replay_settings).get(queue, 2)
        assert seal is not None
        where = f"queue = '{queue}' AND attempt = {seal.attempt} AND chunk = 0"
        session.execute(f"DELETE FROM {keyspace}.replay_blocks WHERE {where}")
    assert check(replay_settings, queue).faults == [
        f"batch {queue}-2 has 0 blocks, 0 items and the SHA-256 {encode([])[2].hex()}; sealed were 1, 1 and "
        f"{seal.sha256.hex()}"
    ]
    with Subscriber(replay_settings, queue, "p") as subscriber, pytest.raises(DamagedBatch):
        subscriber.run(lambda _: None, until_idle=True)
    assert lag(replay_settings, queue)[0].done == 1


def test_effects_happen_once(replay_settings: Settings, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two instances that both believe to hold the lock apply each batch once."""
    table = f"{replay_settings.cassandra.keyspace}.effects_{queue}"
    with database.connect(replay_settings) as session:
        session.execute(
            f"CREATE TABLE {table} (part text, cursor bigint static, n bigint, item text, PRIMARY KEY (part, n))"
        )
    effects = Effects(table, {"part": "all"})
    insert = f"INSERT INTO {table} (part, n, item) VALUES (?, ?, ?)"
    handled: list[int] = []

    def handle(batch: Batch) -> list[tuple[str, list[object]]]:
        handled.append(batch.n)
        return [(insert, ["all", batch.n, batch.items[0].decode()])]

    def work(_: int) -> None:
        with Subscriber(replay_settings, queue, "p") as subscriber:
            subscriber.run(handle, effects=effects, until_idle=True)

    with Publisher(replay_settings, queue) as publisher:
        for i in range(10):
            publisher.publish([b"%d" % i])
    monkeypatch.setattr(Coordination, "working", lambda *_: nullcontext(True))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    with database.connect(replay_settings) as session:
        rows = list(session.execute(f"SELECT n, item, cursor, writetime(item) AS at FROM {table}"))
    assert [(row.n, row.item, row.cursor) for row in rows] == [(i + 1, str(i), 10) for i in range(10)]
    assert sorted(set(handled)) == list(range(1, 11))


def test_names_that_cannot_be_paths(replay_settings: Settings) -> None:
    for name in ("", "a/b", ".", "-x", "x" * 201):
        with pytest.raises(WritetimeError, match="letters, digits"):
            Publisher(replay_settings, name)
        with pytest.raises(WritetimeError, match="processor"):
            Subscriber(replay_settings, "q", name)


def test_an_instance_that_waits_survives_the_loss_of_zookeepers_data(
    replay_settings: Settings, queue: str, kazoo: KazooClient
) -> None:
    """The lock that it was about to look up, that of its predecessor, no longer exists."""
    path = f"/queues/{queue}/processors/p/lock"

    def second() -> bool:
        with coordination(replay_settings, queue) as other, other.working("p", lambda: False) as held:
            return held

    def contenders() -> int:
        children: Any = kazoo.get_children(path)
        return len(children)

    with (
        ThreadPoolExecutor(1) as pool,
        coordination(replay_settings, queue) as first,
        first.working("p", lambda: False) as held,
    ):
        assert held
        found = pool.submit(second)
        while contenders() < 2:
            time.sleep(0.01)
        wait_for(lambda: is_deleted(kazoo, f"/queues/{queue}"))
        assert found.result(PATIENCE_SECONDS)
