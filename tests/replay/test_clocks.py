"""Clients with wrong clocks: the write times of replay queues do not depend on them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cassandra.timestamps import MonotonicTimestampGenerator
from kazoo.client import KazooClient

from tests.replay.processing import done
from writetime.clients import database
from writetime.core.config import Settings
from writetime.replay import Publisher, forget, rebuild, seek, trim

pytestmark = pytest.mark.slow

DAYS_AHEAD = 2 * 86_400


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Any]:
    """Returns a context in which the driver's clock, as that of its host, is ahead by some seconds."""
    right = MonotonicTimestampGenerator.__call__

    @contextmanager
    def ahead(seconds: float) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(MonotonicTimestampGenerator, "__call__", lambda s: right(s) + round(seconds * 1e6))
            yield

    return ahead


def publish(settings: Settings, queue: str, count: int) -> None:
    with Publisher(settings, queue) as publisher:
        for n in range(count):
            publisher.publish([b"%d" % n])


def lose_zookeeper(settings: Settings, queue: str) -> None:
    client = KazooClient(settings.zookeeper.hosts)
    client.start()
    client.delete(f"/queues/{queue}", recursive=True)
    client.stop()
    client.close()


def rows(settings: Settings, statement: str) -> list[tuple[Any, ...]]:
    with database.connect(settings) as session:
        return [tuple(row) for row in session.execute(statement.replace("KS", settings.cassandra.keyspace))]


@pytest.mark.parametrize(("works", "seeks"), [(120, 0), (0, -120), (DAYS_AHEAD, -DAYS_AHEAD), (-120, 120)])
@pytest.mark.parametrize("to", [1, 3, 7])
def test_the_last_seek_is_restored(
    replay_settings: Settings, queue: str, clock: Callable[[float], Any], works: int, seeks: int, to: int
) -> None:
    publish(replay_settings, queue, 6)
    with clock(works):
        assert len(done(replay_settings, queue, "p")) == 6
    with clock(seeks):
        for n in (7, 2, to):
            seek(replay_settings, queue, "p", n)
    assert rows(replay_settings, f"SELECT n FROM KS.replay_cursors WHERE queue = '{queue}'") == [(to - 1,)]
    lose_zookeeper(replay_settings, queue)
    rebuild(replay_settings, queue)
    with clock(works):
        assert [batch.n for batch in done(replay_settings, queue, "p")] == list(range(to, 7))
    # The copy of this work wins over that of the `seek`.
    assert rows(replay_settings, f"SELECT n FROM KS.replay_cursors WHERE queue = '{queue}'") == [(6,)]


@pytest.mark.parametrize(("publishes", "trims"), [(3 * 3600, 0), (0, -3 * 3600), (DAYS_AHEAD, -DAYS_AHEAD)])
def test_trim_deletes_what_it_reports(
    replay_settings: Settings, queue: str, clock: Callable[[float], Any], publishes: int, trims: int
) -> None:
    own = replay_settings.replay.model_copy(update={"keep_days": {queue: 1e-9}})
    settings = replay_settings.model_copy(update={"replay": own})
    with clock(publishes):
        publish(settings, queue, 4)
    with clock(trims):
        assert trim(settings, queue).deleted == 4
    assert [
        r for r in rows(settings, "SELECT DISTINCT queue, attempt, chunk FROM KS.replay_blocks") if queue in r
    ] == []


@pytest.mark.parametrize("ahead", [-120, 120])
def test_a_processor_that_was_forgotten_begins_again(
    replay_settings: Settings, queue: str, clock: Callable[[float], Any], ahead: int
) -> None:
    publish(replay_settings, queue, 2)
    done(replay_settings, queue, "p")
    with clock(ahead):
        forget(replay_settings, queue, "p")
    assert rows(replay_settings, f"SELECT n FROM KS.replay_cursors WHERE queue = '{queue}'") == []
    assert len(done(replay_settings, queue, "p")) == 2
    assert rows(replay_settings, f"SELECT n FROM KS.replay_cursors WHERE queue = '{queue}'") == [(2,)]


def test_data_with_write_times_in_the_future(replay_settings: Settings, queue: str) -> None:
    """As another program wrote them, or nodes whose clocks differ: a `seek` and a deletion win over them."""
    own = replay_settings.replay.model_copy(update={"keep_days": {queue: 1e-9}})
    settings = replay_settings.model_copy(update={"replay": own})
    publish(settings, queue, 4)
    done(settings, queue, "p")
    [(now,)] = rows(settings, f"SELECT max(WRITETIME(n)) FROM KS.replay_cursors WHERE queue = '{queue}'")
    later = now + 3600 * 10**6
    values = f"(queue, processor, n) VALUES ('{queue}', 'p', 4)"
    rows(settings, f"INSERT INTO KS.replay_cursors {values} USING TIMESTAMP {later}")
    for of, attempt, chunk, idx in rows(settings, "SELECT queue, attempt, chunk, idx FROM KS.replay_blocks"):
        if of == queue:
            values = f"('{queue}', {attempt}, {chunk}, {idx}, 0x00)"
            into = "INSERT INTO KS.replay_blocks (queue, attempt, chunk, idx, data)"
            rows(settings, f"{into} VALUES {values} USING TIMESTAMP {later}")
    seek(settings, queue, "p", 3)
    assert rows(settings, f"SELECT n FROM KS.replay_cursors WHERE queue = '{queue}'") == [(2,)]
    assert trim(settings, queue).deleted == 2
    seals = {
        attempt: n
        for n, attempt in rows(
            settings, f"SELECT n, attempt FROM KS.replay_batches WHERE queue = '{queue}' AND era = 0"
        )
    }
    left = rows(settings, "SELECT DISTINCT queue, attempt, chunk FROM KS.replay_blocks")
    assert sorted(seals[attempt] for of, attempt, _ in left if of == queue) == [3, 4]


def test_no_session_writes_with_the_clock_of_this_machine(
    replay_settings: Settings, queue: str, clock: Callable[[float], Any]
) -> None:
    with clock(DAYS_AHEAD):
        rows(
            replay_settings, f"INSERT INTO KS.queue_buckets (queue, bucket, shard, closed) VALUES ('{queue}', 0, 0, 1)"
        )
    of = f"FROM KS.queue_buckets WHERE queue = '{queue}' AND bucket = 0 AND shard = 0"
    [(written, now)] = rows(replay_settings, f"SELECT WRITETIME(closed), toUnixTimestamp(now()) {of}")
    assert 0 <= now - written / 1000 < 600_000
