"""Of two items with one id and different content, one is acknowledged, and it is the one that the database has."""

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from tests.workqueue.conftest import with_queue
from tests.workqueue.working import states
from writetime.clients import database
from writetime.core.config import Settings
from writetime.workqueue import Enqueuer, Item, ItemConflict, NewItem, Worker
from writetime.workqueue.enqueue import InvalidItem

pytestmark = pytest.mark.slow

Content = tuple[str | None, Any]
CONTENTS: list[Content] = [
    ("k", {"a": 1}),
    ("k", {"a": 1.0}),
    ("k", {"a": True}),
    ("k", {"a": "1"}),
    ("k", {"a": None}),
    ("k", {}),
    ("k", None),
    ("k", {"a": 1, "b": 2}),
    ("other", {"a": 1}),
]


@pytest.fixture
def settings(queue_keyspace: Settings, jobs: str) -> Settings:
    """With one shard: all keys are in one partition."""
    return with_queue(queue_keyspace, jobs, {"shards": 1, "max_attempts": 1})


@pytest.fixture
def enqueuer(settings: Settings) -> Iterator[Enqueuer]:
    with Enqueuer(settings) as opened:
        yield opened


def stored(settings: Settings, queue: str) -> dict[UUID, Content]:
    with database.connect(settings) as session:
        # Items of other tests may have keys that the driver cannot decode.
        columns, table = "item_id, key, payload", f"{settings.cassandra.keyspace}.queue_items"
        found = session.execute(f"SELECT {columns} FROM {table} WHERE queue = %s ALLOW FILTERING", [queue])
        return {row.item_id: (row.key, row.payload) for row in found}


@pytest.mark.parametrize("delay", [0.0, 3600.0])
def test_the_first_content_stays(enqueuer: Enqueuer, settings: Settings, jobs: str, delay: float) -> None:
    for (key, payload), (other_key, other) in itertools.permutations(CONTENTS[:4] + CONTENTS[-1:], 2):
        item_id = enqueuer.enqueue(jobs, payload, key=key, delay_seconds=delay)
        before = stored(settings, jobs)[item_id]
        assert enqueuer.enqueue(jobs, payload, key=key, item_id=item_id) == item_id
        with pytest.raises(ItemConflict, match=str(item_id)) as conflict:
            enqueuer.enqueue(jobs, other, key=other_key, item_id=item_id)
        assert conflict.value.item_ids == [item_id]
        assert stored(settings, jobs)[item_id] == before


def test_the_order_of_names_does_not_matter(enqueuer: Enqueuer, jobs: str) -> None:
    item_id = enqueuer.enqueue(jobs, {"a": 1, "b": [{"c": 1, "d": 2}]})
    assert enqueuer.enqueue(jobs, {"b": [{"d": 2, "c": 1}], "a": 1}, item_id=item_id) == item_id


def test_the_other_items_of_a_call_are_enqueued(enqueuer: Enqueuer, settings: Settings, jobs: str) -> None:
    ids = enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(600)])
    again = [NewItem(-n if n in (7, 400) else n, item_id=item_id) for n, item_id in enumerate(ids)]
    with pytest.raises(ItemConflict, match="2 item ids") as conflict:
        enqueuer.enqueue_many(jobs, [*again, NewItem("new")])
    assert sorted(conflict.value.item_ids) == [ids[7], ids[400]]
    payloads = [payload for _, payload in stored(settings, jobs).values()]
    assert sorted(payloads) == sorted([*map(str, range(600)), '"new"'])


def test_one_id_twice_in_a_call(enqueuer: Enqueuer, settings: Settings, jobs: str) -> None:
    item_id = enqueuer.enqueue(jobs, 1)
    assert enqueuer.enqueue_many(jobs, [NewItem(1, item_id=item_id)] * 2) == [item_id] * 2
    with pytest.raises(ItemConflict):
        enqueuer.enqueue_many(jobs, [NewItem("new"), NewItem(1, item_id=item_id), NewItem(2, item_id=item_id)])
    assert len(stored(settings, jobs)) == 1


def test_calls_at_the_same_time(settings: Settings, jobs: str) -> None:
    """Each acknowledged content is that of the database, whichever call is first."""
    with Enqueuer(settings) as enqueuer:
        first = enqueuer.enqueue(jobs, None)

    def call(opened: Enqueuer, payload: int, item_id: UUID) -> int | None:
        try:
            opened.enqueue(jobs, payload, item_id=item_id)
        except ItemConflict:
            return None
        return payload

    with Enqueuer(settings) as one, Enqueuer(settings) as other, ThreadPoolExecutor(8) as pool:
        for n in range(1, 21):
            item_id = UUID(int=first.int + n)
            called = [pool.submit(call, (one, other)[i % 2], i % 3, item_id) for i in range(8)]
            acknowledged = {call.result() for call in called} - {None}
            assert len(acknowledged) == 1
            assert stored(settings, jobs)[item_id][1] == str(acknowledged.pop())


@pytest.mark.parametrize("first", [None, 1.5])
@pytest.mark.parametrize("other", [None, 2.5])
def test_an_item_with_another_time_limit_conflicts(
    enqueuer: Enqueuer, jobs: str, first: float | None, other: float | None
) -> None:
    item_id = enqueuer.enqueue(jobs, 1, time_limit_seconds=first)
    assert enqueuer.enqueue(jobs, 1, item_id=item_id, time_limit_seconds=first) == item_id
    if other != first:
        for items in (
            [NewItem(1, item_id=item_id, time_limit_seconds=limit) for limit in (first, other)],
            [NewItem(1, item_id=item_id, time_limit_seconds=other)],
        ):
            with pytest.raises(ItemConflict, match=str(item_id)):
                enqueuer.enqueue_many(jobs, items)


@pytest.mark.parametrize("limit", [0, -1.0, math.nan, math.inf, 366 * 86_400 + 1, 10**20])
def test_an_invalid_time_limit_is_refused(enqueuer: Enqueuer, settings: Settings, jobs: str, limit: float) -> None:
    with pytest.raises(InvalidItem, match=r"a time limit must have more than 0 and at most 31622400 seconds"):
        enqueuer.enqueue_many(jobs, [NewItem(1), NewItem(2, time_limit_seconds=limit)])
    assert stored(settings, jobs) == {}


@pytest.mark.parametrize("payload", [math.nan, [math.inf], {"a": -math.inf}, {math.nan: 1}, {"1": 1, 1: 2}])
def test_what_is_not_json_is_neither_a_payload_nor_a_result(settings: Settings, jobs: str, payload: Any) -> None:
    with Enqueuer(settings) as enqueuer:
        with pytest.raises(InvalidItem, match="the payload cannot be JSON"):
            enqueuer.enqueue(jobs, payload)
        enqueuer.enqueue(jobs, 1)

    def handle(item: Item) -> Any:
        return payload

    assert Worker(settings, {jobs: handle}).run(until_idle=True)["dead"] == 1
    [state] = states(settings, jobs).values()
    assert "the handler's result cannot be JSON" in state.error


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        *(("payload", text, "the payload cannot be read") for text in ("NaN", '{"a":Infinity}', '{"a":1,"a":2}')),
        *(("time_limit_seconds", limit, "time limit") for limit in (math.nan, math.inf, -1.0, 0.0, 1e9)),
    ],
)
def test_an_item_of_another_program_that_breaks_the_rules_is_dead(
    settings: Settings, jobs: str, column: str, value: Any, reason: str
) -> None:
    with Enqueuer(settings) as enqueuer:
        item_id = enqueuer.enqueue(jobs, 1)
    table = f"{settings.cassandra.keyspace}.queue_items"
    with database.connect(settings) as session:
        [row] = session.execute(f"SELECT shard, bucket FROM {table} WHERE queue = %s ALLOW FILTERING", [jobs])
        session.execute(
            f"UPDATE {table} SET {column} = %s WHERE queue = %s AND shard = %s AND bucket = %s AND item_id = %s",
            (value, jobs, row.shard, row.bucket, item_id),
        )
    assert Worker(settings, {jobs: lambda item: None}).run(until_idle=True)["dead"] == 1
    assert reason in states(settings, jobs)[item_id].error
