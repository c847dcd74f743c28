"""Some real flights of the demo, from the work queue to the departures board, and the figures on the board."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import orjson
import pytest
from cassandra.cluster import Session
from click.testing import CliRunner
from kazoo.client import KazooClient

from demo import board, dataset, enrichment, figures, flights, published
from demo.board import Applied, Board
from demo.published import Published
from tests.support.settings import write_settings
from writetime.cli.main import main
from writetime.clients.database import connect
from writetime.core.config import Capture, Settings
from writetime.core.errors import WritetimeError
from writetime.replay import Publisher, replay, seek
from writetime.workqueue import Enqueuer, EnqueueUnknown, NewItem, Worker

pytestmark = pytest.mark.long

# Where the airports are, for positions that have expired.
AT = {faa: (lat, lon) for faa, lat, lon in dataset.read("airports")[["faa", "lat", "lon"]].itertuples(index=False)}


@pytest.fixture
def own(
    settings: Settings, pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    """Settings of which ZooKeeper knows no queue of flights: its nodes have no keyspace."""
    if pytestconfig.getoption("--scylla"):
        tables = [f"{settings.cassandra.keyspace}.{board.TABLE}"]
        capture = Capture(source="scylla-cdc", tables=tables, snapshot="schema-only")
        settings = settings.model_copy(update={"capture": capture})
        write_settings(settings, tmp_path / "scylla.toml")
        monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "scylla.toml"))
    client = KazooClient(settings.zookeeper.hosts)
    client.start()
    client.delete("/queues/flights", recursive=True)
    yield settings
    client.delete("/queues/flights", recursive=True)
    client.stop()
    client.close()


def run(*arguments: str) -> str:
    answer = CliRunner(catch_exceptions=False).invoke(main, list(arguments))
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def enrich(settings: Settings, items: Sequence[NewItem]) -> None:
    with Enqueuer(settings) as enqueuer:
        enqueuer.enqueue_many(enrichment.QUEUE, items)
    Worker(settings, {enrichment.QUEUE: enrichment.enrich}).run(until_idle=True)


def cells(session: Session, table: str) -> list[Any]:
    """The database's answer, with write times, except for positions, which expire."""
    columns = "origin, day, airport, cancelled, scheduled, carrier, flight, destination, tail, plane, weather, departed"
    times = ", ".join(f"writetime({name})" for name in ("airport", "destination", "departed", "arrived"))
    return list(session.execute(f"SELECT {columns}, arrived, air_minutes, {times} FROM {table}"))


@pytest.fixture
def count(is_long: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many flights there are, a multiple of ten: in a long run those of two days. Half of them fill a batch."""
    count = 1000 if is_long else 200
    monkeypatch.setattr(published, "BATCH_FLIGHTS", count // 2)
    return count


@pytest.mark.usefixtures("queue_tables")
def test_from_the_work_queue_to_the_view(own: Settings, count: int) -> None:
    settings, table = own, f"{own.cassandra.keyspace}.{board.TABLE}"
    with pytest.raises(WritetimeError, match="create it with ensure_board"):
        board.work(settings)
    for _ in range(2):
        board.ensure_board(settings)
    publish_flights(settings, count)
    # The database agrees with the data set: in total, and for each flight.
    expected = figures.published_figures(count)
    assert figures.database_figures(settings) == expected
    with connect(settings) as session:
        session.execute(f"USE {settings.cassandra.keyspace}")
        compare(session, count)
        before = cells(session, table)
        # A replay changes nothing.
        seek(settings, published.QUEUE, board.PROCESSOR, 1)
        assert board.work(settings) == Applied(3, count)
        assert cells(session, table) == before
        assert figures.database_figures(settings) == expected
        correction = apply_a_later_batch_first(settings, count)
        found = f"SELECT tail, arrival_delay FROM {table} WHERE origin = 'EWR' AND day = '2013-01-01' LIMIT 1"
        assert session.execute(found).one() == ("N1", -60)
        if settings.capture.source == "commitlog":
            # The lake's view has the same figures. (tests/scylla brings in snapshots of ScyllaDB, by its own nodetool.)
            run("backfill", table, *run("snapshot", table).split())
            run("maintain", table)
            assert figures.lake_figures(settings) == figures.database_figures(settings) == expected
        before = cells(session, table)
        assert_a_batch_with_what_is_no_flight_is_refused(settings, correction)
        assert cells(session, table) == before


def publish_flights(settings: Settings, count: int) -> None:
    """A flight that is not enriched yet holds up those after it, and nothing is published twice."""
    items = list(enrichment.items(flights.flights(count)))
    waiting = count * 3 // 10
    missing = waiting - 1
    enrich(settings, [*items[:missing], *items[missing + 1 :][:waiting]])
    assert published.publish(settings) == Published(missing, 1, missing, waiting)
    assert published.publish(settings) == Published(0, 0, missing, waiting)
    work = ("replay", "work", published.QUEUE, board.PROCESSOR, "--handler", board.HANDLER, "--until-idle")
    assert run(*work) == "1 batch\n"
    assert figures.database_figures(settings) == figures.published_figures(missing)
    enrich(settings, [items[missing], *items[2 * waiting :]])
    assert published.publish(settings) == Published(count - missing, 2, count, 0)
    assert board.work(settings) == Applied(2, count - missing)
    assert board.work(settings) == Applied(0, 0)


def apply_a_later_batch_first(settings: Settings, count: int) -> dict[str, Any]:
    """Correct the first flight by a later batch, which wins, also if an earlier one is applied after it."""
    [first, *_] = replay(settings, published.QUEUE)
    correction = orjson.loads(first.items[0]) | {"tail": "N1", "arrival_delay": -60}
    with Publisher(settings, published.QUEUE) as publisher:
        publisher.publish([orjson.dumps(correction)], producer="correction", sequence=1)
        assert publisher.last_sequence(published.PRODUCER) == count
    assert board.work(settings) == Applied(1, 1)
    with Board(settings) as late:
        late.apply(first)
    return correction


def assert_a_batch_with_what_is_no_flight_is_refused(settings: Settings, flight: dict[str, Any]) -> None:
    with Publisher(settings, published.QUEUE) as publisher:
        n = publisher.publish([orjson.dumps(flight | {"tail": "N2"}), b'{"flight": "UA1545"}'])
    with pytest.raises(WritetimeError, match=rf"batch flights-{n}, item 1 is not an enriched flight: .*UA1545"):
        board.work(settings)


class LosesAnswers(Enqueuer):
    """Enqueues, but the first two answers are lost: of a call that sent nothing, and of one that sent all."""

    lost = 0

    def enqueue_many(self, queue: str, items: Sequence[NewItem]) -> list[UUID]:
        if self.lost == 0:
            self.lost += 1
            raise EnqueueUnknown("nothing was sent", [])
        ids = super().enqueue_many(queue, items)
        if self.lost == 1:
            self.lost += 1
            raise EnqueueUnknown("not acknowledged", ids)
        return ids


@pytest.mark.usefixtures("queue_tables")
def test_flights_are_enqueued_once_by_a_database_that_is_slow(settings: Settings) -> None:
    items = list(enrichment.items(flights.flights(100)))
    with LosesAnswers(settings) as enqueuer:
        assert enrichment.enqueue(enqueuer, items) == 100
        assert enqueuer.lost == 2
    assert enrichment.account(settings, 0).items == 100


def compare(session: Session, count: int) -> None:
    """Compare each flight with the record of the data set, by DuckDB."""
    first = f"(SELECT * FROM flights ORDER BY time_hour, minute, carrier, flight LIMIT {count})"
    with duckdb.connect() as connection:
        connection.register("flights", dataset.read("flights"))
        connection.register("airports", dataset.read("airports"))
        records = connection.execute(
            "SELECT origin, format('2013-{:02}-{:02}', month, day), carrier, flight, dest, distance, tailnum, "
            "dep_delay::int, CASE WHEN air_time IS NOT NULL THEN arr_delay::int END, air_time::int, name, lat, lon, "
            f"(time_hour::timestamp + to_minutes(minute)) AS at FROM {first} JOIN airports ON origin = faa "
            "WHERE dep_time IS NOT NULL"
        ).fetchall()
        cancelled = connection.execute(
            "SELECT origin, format('2013-{:02}-{:02}', month, day), array_agg(carrier || flight ORDER BY carrier || "
            f"flight) FROM {first} WHERE dep_time IS NULL GROUP BY ALL"
        ).fetchall()
    rows = [row for row in session.execute("SELECT * FROM flights") if row.scheduled is not None]
    assert sorted(map(str, records)) == sorted(
        str(
            (
                *(row.origin, str(row.day), row.carrier, row.flight, row.destination, row.distance_miles, row.tail),
                *(row.departure_delay, row.arrival_delay, row.air_minutes, row.airport),
                *(row.position or AT[row.origin]),
                row.scheduled,
            )
        )
        for row in rows
    )
    assert all((row.departed - row.scheduled).total_seconds() == row.departure_delay * 60 for row in rows)
    days = session.execute("SELECT DISTINCT origin, day, cancelled FROM flights")
    assert cancelled
    assert sorted(cancelled) == sorted((d.origin, str(d.day), sorted(d.cancelled)) for d in days if d.cancelled)
    ttls = [row[0] for row in session.execute("SELECT ttl(position) FROM flights") if row[0] is not None]
    assert all(0 < ttl <= board.POSITION_SECONDS for ttl in ttls)
