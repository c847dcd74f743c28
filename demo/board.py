"""The departures board: a table of flights, written by batches of the replay queue.

A flight is scheduled, then departed, then arrived; each is a partial write. A cancelled flight is deleted, and stays in
the day's set of cancelled flights. Its last known position is a cell that expires.
"""

import atexit
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any, Self

import orjson
from cassandra import InvalidRequest
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent
from cassandra.query import BatchStatement, BatchType, PreparedStatement

from demo import dataset
from demo.enrichment import ENRICHED
from demo.published import QUEUE
from writetime.clients.database import connect
from writetime.clients.prepared_statements import driver_faults_named
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake.followed_tables import cdc_option
from writetime.replay import Batch, Subscriber
from writetime.schema.cql import parse_table
from writetime.schema.table import TableSchema

TABLE = "flights"
PROCESSOR = "board"
HANDLER = f"{__name__}:apply"
POSITION_SECONDS = 300
"""The time after the publishing of a batch at which the positions of its flights expire."""
_STEPS = 4
_SCHEDULED, _DEPARTED, _ARRIVED = range(3)
# Flights per statement. Cassandra warns of a statement above 5 KiB.
_FLIGHTS_AT_ONCE = 5
_IN_FLIGHT = 32
_CREATE = """
CREATE TABLE IF NOT EXISTS {keyspace}.{table} (
    origin text,
    day date,
    airport text STATIC,
    cancelled set<text> STATIC,
    scheduled timestamp,
    carrier text,
    flight int,
    destination text,
    distance_miles int,
    tail text,
    plane map<text, text>,
    weather map<text, double>,
    departed timestamp,
    departure_delay int,
    position tuple<double, double>,
    arrived timestamp,
    arrival_delay int,
    air_minutes int,
    PRIMARY KEY ((origin, day), scheduled, carrier, flight)
) WITH cdc = {cdc}"""
_ROW = "origin = ? AND day = ? AND scheduled = ? AND carrier = ? AND flight = ?"
_STATEMENTS = {
    "airport": "INSERT INTO {table} (origin, day, airport) VALUES (?, ?, ?) USING TIMESTAMP ?",
    "scheduled": (
        "INSERT INTO {table} (origin, day, scheduled, carrier, flight, destination, distance_miles, tail, plane) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
    ),
    "departed": (
        "UPDATE {table} USING TIMESTAMP ? SET departed = ?, departure_delay = ?, weather = weather + ? WHERE " + _ROW
    ),
    "position": "UPDATE {table} USING TIMESTAMP ? AND TTL ? SET position = ? WHERE " + _ROW,
    "arrived": "UPDATE {table} USING TIMESTAMP ? SET arrived = ?, arrival_delay = ?, air_minutes = ? WHERE " + _ROW,
    "deleted": "DELETE FROM {table} USING TIMESTAMP ? WHERE " + _ROW,
    "cancelled": "UPDATE {table} USING TIMESTAMP ? SET cancelled = cancelled + ? WHERE origin = ? AND day = ?",
}


@dataclass(frozen=True)
class Applied:
    """The result of `work`: the number of batches, and of flights in them."""

    batches: int
    flights: int


def schema(keyspace: str) -> TableSchema:
    """Return the board's table."""
    return parse_table(_CREATE.format(keyspace=keyspace, table=TABLE, cdc="true"))


def ensure_board(settings: Settings) -> None:
    """Create the board's table, with capture, if it does not exist. Only the demo has it, so it is not in `cql/`."""
    create = _CREATE.format(keyspace=settings.cassandra.keyspace, table=TABLE, cdc=cdc_option(settings))
    with connect(settings) as session:
        session.execute(create, timeout=60)


def work(settings: Settings) -> Applied:
    """Apply the batches that the processor `board` has not applied yet.

    Raises:
        WritetimeError: there is no board, or a batch has an item that is not a flight.
    """
    with Board(settings) as board, Subscriber(settings, QUEUE, PROCESSOR) as subscriber:
        return Applied(subscriber.run(board.apply, until_idle=True), board.flights)


def apply(batch: Batch) -> None:
    """Apply a batch to the board of the current settings. This is the handler of `writetime replay work`."""
    _board().apply(batch)


def write_time(published_at: datetime, position: int, step: int = 0) -> int:
    """Return the write time (microseconds) of a step of an item. Write times increase along the queue."""
    return round(published_at.timestamp() * 1_000_000) + position * _STEPS + step


class Board:
    """Writes batches of flights to the board; a context manager.

    The write time of a cell is the time at which its batch was published, plus the item's position in the batch. It is
    not the processor's time. So a batch that is applied again, after its processor was killed or in a replay a year
    later, writes the same cells with the same write times, and changes nothing. Of two batches with the same flight,
    the later one wins, even if an instance that was stopped for a long time writes the earlier one after it. With the
    processor's clock, the instance that runs last would win.

    The time at which a position expires depends on the batch, too. The TTL is the time until then.
    """

    def __init__(self, settings: Settings) -> None:
        self.flights = 0
        self._settings = settings
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        self._session: Session = self._resources.enter_context(connect(self._settings))
        table = f"{self._settings.cassandra.keyspace}.{TABLE}"
        try:
            self._prepared: dict[str, PreparedStatement] = {
                name: self._session.prepare(text.format(table=table)) for name, text in _STATEMENTS.items()
            }
        except InvalidRequest as e:
            self._resources.close()
            raise WritetimeError(f"there is no board {table} as expected ({e}); create it with ensure_board") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def apply(self, batch: Batch) -> None:
        """Write the flights of a batch. When it returns, the database has all of them.

        Raises:
            WritetimeError: an item is not a flight; nothing of the batch is written.
            Unknown: the database did not answer. Repeat the batch, as a `Subscriber` does.
        """
        days: dict[tuple[str, date], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        for position, item in enumerate(batch.items):
            flight = _flight(batch, position, item)
            days[_day(flight)].append((position, flight))
        expires_at = batch.seal.published_at + timedelta(seconds=POSITION_SECONDS)
        seconds_left = int((expires_at - datetime.now(UTC)).total_seconds())
        writes = [
            self._written(batch.seal.published_at, flights[i : i + _FLIGHTS_AT_ONCE], seconds_left)
            for flights in days.values()
            for i in range(0, len(flights), _FLIGHTS_AT_ONCE)
        ]
        with driver_faults_named("the board"):
            execute_concurrent(self._session, [(write, None) for write in writes], _IN_FLIGHT)
        self.flights += len(batch.items)

    def _written(
        self, published_at: datetime, flights: Sequence[tuple[int, dict[str, Any]]], seconds_left: int
    ) -> BatchStatement:
        """Return one mutation: the flights of one partition."""
        write = BatchStatement(BatchType.UNLOGGED)
        first, flight = flights[0]
        airport = _airports()[flight["origin"]][0]
        write.add(self._prepared["airport"], (*_day(flight), airport, write_time(published_at, first)))
        for position, flight in flights:
            for name, values in _changes(flight, published_at, position, seconds_left):
                write.add(self._prepared[name], values)
        return write


def _changes(
    flight: dict[str, Any], published_at: datetime, position: int, seconds_left: int
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the writes of a flight, as statements with their values."""
    day = _day(flight)
    scheduled = datetime.fromisoformat(flight["scheduled"])
    row = *day, scheduled, flight["carrier"], flight["number"]
    plane = {name: value if isinstance(value, str) else f"{value:g}" for name, value in (flight["plane"] or {}).items()}
    about = flight["destination"], flight["distance_miles"], flight["tail"], plane
    yield "scheduled", (*row, *about, write_time(published_at, position, _SCHEDULED))
    at = write_time(published_at, position, _DEPARTED)
    if flight["departure_delay"] is None:
        yield "deleted", (at, *row)
        yield "cancelled", (at, {flight["flight"]}, *day)
        return
    departed = scheduled + timedelta(minutes=flight["departure_delay"])
    yield "departed", (at, departed, flight["departure_delay"], flight["weather"] or {}, *row)
    if seconds_left > 0:
        yield "position", (at, seconds_left, _airports()[flight["origin"]][1], *row)
    if flight["air_minutes"] is not None:
        arrived = departed + timedelta(minutes=flight["air_minutes"])
        facts = arrived, flight["arrival_delay"], flight["air_minutes"]
        yield "arrived", (write_time(published_at, position, _ARRIVED), *facts, *row)


def _day(flight: dict[str, Any]) -> tuple[str, date]:
    """Return the partition key. The driver would also accept a text for a date, at ten times the cost."""
    return flight["origin"], date.fromisoformat(flight["day"])


def _flight(batch: Batch, position: int, item: bytes) -> dict[str, Any]:
    try:
        flight = orjson.loads(item)
    except ValueError:
        flight = None
    if isinstance(flight, dict) and flight.keys() >= ENRICHED:
        return flight
    raise WritetimeError(f"batch {batch.id}, item {position} is not an enriched flight: {item[:80]!r}")


@cache
def _airports() -> dict[str, tuple[str, tuple[float, float]]]:
    """Return the names of the airports, and their positions: latitude and longitude in degrees."""
    rows = dataset.read("airports")[["faa", "name", "lat", "lon"]].itertuples(index=False)
    return {faa: (name, (latitude, longitude)) for faa, name, latitude, longitude in rows}


@cache
def _board() -> Board:
    board = Board(config.load()).__enter__()
    atexit.register(board.__exit__)
    return board
