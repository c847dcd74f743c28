"""Faults that do not pass by themselves: they end a publisher or processor with their reason, and a stop is obeyed."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.replay.pausing import pausable
from tests.replay.processing import done
from writetime.clients import database
from writetime.clients.prepared_statements import UnknownWrite
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.replay import Effects, Publisher, Subscriber, replay
from writetime.replay.batches import Batches
from writetime.replay.blocks import MAX_ITEM_BYTES

pytestmark = pytest.mark.slow

BLOB = "INSERT INTO {} (part, n, item) VALUES ('all', ?, ?)"
LIST = "INSERT INTO {} (part, n, numbers) VALUES ('all', ?, ?)"


@pytest.fixture
def table(replay_settings: Settings, queue: str) -> str:
    name = f"{replay_settings.cassandra.keyspace}.effects_{queue}"
    columns = "part text, cursor bigint static, n bigint, item blob, numbers list<int>, PRIMARY KEY (part, n)"
    with database.connect(replay_settings) as session:
        session.execute(f"CREATE TABLE {name} ({columns})")
    return name


@pytest.fixture
def limit(pytestconfig: pytest.Config, replay_settings: Settings) -> int:
    """The most bytes of a write: half of a segment of the commit log, which is smaller in the embedded database."""
    if not pytestconfig.getoption("--scylla"):
        return 4 << 20
    with database.connect(replay_settings) as session:
        found = session.execute("SELECT value FROM system.config WHERE name = 'commitlog_segment_size_in_mb'").one()
    return int(found.value) << 19


def run(settings: Settings, queue: str, table: str, statements: Callable[[], Iterable[Any]]) -> int:
    """Process the batches of a queue until there is none left, with the same effects for each."""
    with Subscriber(settings, queue, "p") as subscriber:
        effects = Effects(table, {"part": "all"})
        return subscriber.run(lambda _: statements(), effects=effects, until_idle=True)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("text", "values"),
    [
        (BLOB, lambda limit: [[1, os.urandom(limit + (1 << 20))]]),
        (BLOB, lambda limit: [[1, os.urandom(limit - 100)]]),
        (BLOB, lambda limit: [[n, os.urandom(limit // 4)] for n in range(4)]),
        (BLOB, lambda limit: [[n, os.urandom(limit // 40_000 - 19)] for n in range(40_000)]),
        (LIST, lambda limit: [[1, list(range(limit // 20))]]),
    ],
    ids=["one", "just", "some", "many", "list"],
)
def test_effects_that_the_database_never_takes(
    replay_settings: Settings, queue: str, table: str, limit: int, text: str, values: Callable[[int], list[list[Any]]]
) -> None:
    with Publisher(replay_settings, queue) as publisher:
        publisher.publish([b"x"])
    statements = [(text.format(table), each) for each in values(limit)]
    with pytest.raises(WritetimeError, match=rf"batch {queue}-1: its effects have \d+ bytes, .* at most {limit} "):
        run(replay_settings, queue, table, lambda: statements)
    assert run(replay_settings, queue, table, lambda: [(BLOB.format(table), [1, os.urandom(limit - 5000)])]) == 1


@pytest.mark.timeout(120)
def test_a_stop_ends_the_retries_of_effects(
    replay_settings: Settings, queue: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database answers no conditional write."""
    with Publisher(replay_settings, queue) as publisher:
        publisher.publish([b"x"])
    tries: list[int] = []
    stop = threading.Event()

    def silent(*_: object) -> None:
        tries.append(1)
        if len(tries) == 3:
            stop.set()
        raise UnknownWrite("no answer")

    began = time.monotonic()
    with monkeypatch.context() as down, Subscriber(replay_settings, queue, "p") as subscriber:
        down.setattr(Batches, "run", silent)
        assert subscriber.run(lambda _: [], stop, effects=Effects(table, {"part": "all"})) == 0
    # A pause follows each.
    assert len(tries) == 3
    assert time.monotonic() - began > 2 * replay_settings.replay.poll_seconds
    assert run(replay_settings, queue, table, list) == 1


@pytest.mark.timeout(120)
def test_an_error_of_a_generator_of_effects_ends_the_run(replay_settings: Settings, queue: str, table: str) -> None:
    """The handler's own database may never answer, so it is not for the processor to try again."""
    with Publisher(replay_settings, queue) as publisher:
        publisher.publish([b"x"])
    calls: list[int] = []

    def handle() -> Iterator[Any]:
        calls.append(1)
        yield BLOB.format(table), [len(calls), b"x"]
        if len(calls) == 1:
            raise UnknownWrite("mine")

    with pytest.raises(UnknownWrite, match="mine") as raised:
        run(replay_settings, queue, table, handle)
    assert raised.value.__notes__ == [f"batch {queue}-1 is not done: processor p processes it again at its next start"]
    assert run(replay_settings, queue, table, handle) == 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", ["9" * 23, "9223372036854775807", "9223372036854775808", "²", "-1", "1.5", "", "\0"])
def test_garbage_in_zookeeper_is_reported(replay_settings: Settings, queue: str, number: str) -> None:
    with Publisher(replay_settings, queue) as publisher:
        publisher.publish([b"x"])
    assert len(done(replay_settings, queue, "p")) == 1
    zookeeper = KazooClient(replay_settings.zookeeper.hosts)
    zookeeper.start()
    try:
        zookeeper.set(f"/queues/{queue}", f"{queue}-{number}".encode())
        with Publisher(replay_settings, queue) as publisher, pytest.raises(WritetimeError, match="delete this node"):
            publisher.publish([b"x"])
        zookeeper.set(f"/queues/{queue}", f"{queue}-1".encode())
        zookeeper.set(f"/queues/{queue}/processors/p", f"{queue}-{number}".encode())
        with pytest.raises(WritetimeError, match="delete this node"):
            done(replay_settings, queue, "p")
    finally:
        zookeeper.stop()
        zookeeper.close()


@pytest.mark.timeout(120)
def test_a_value_that_no_statement_can_have_is_no_outage(replay_settings: Settings, queue: str) -> None:
    with Publisher(replay_settings, queue) as publisher, pytest.raises(Exception, match="invalid type"):
        publisher.publish([b"x"], producer="p", sequence=2**63)


@pytest.mark.timeout(200)
def test_a_paused_zookeeper_delays_a_batch_by_less_than_the_timeout(replay_settings: Settings, queue: str) -> None:
    replay_of_30 = replay_settings.replay.model_copy(update={"publish_timeout_seconds": 30.0})
    with pausable(replay_settings.zookeeper.hosts) as (address, runs):
        zookeeper = replay_settings.zookeeper.model_copy(update={"hosts": address})
        settings = replay_settings.model_copy(update={"zookeeper": zookeeper, "replay": replay_of_30})
        with Publisher(settings, queue) as publisher:
            assert publisher.publish([b"1"]) == 1
            runs.clear()
            for n in (2, 3):
                began = time.monotonic()
                assert publisher.publish([b"x"]) == n
                assert time.monotonic() - began < 30
            runs.set()
    assert [batch.n for batch in replay(replay_settings, queue)] == [1, 2, 3]


@pytest.mark.parametrize("at", [0, 1])
def test_an_item_that_is_too_large_is_refused(replay_settings: Settings, queue: str, at: int) -> None:
    class Large(bytes):
        def __len__(self) -> int:
            return MAX_ITEM_BYTES + 1

    items = [b"x", b"x"]
    items[at] = Large()
    with Publisher(replay_settings, queue) as publisher, pytest.raises(WritetimeError, match=f"item {at} has"):
        publisher.publish(items)
