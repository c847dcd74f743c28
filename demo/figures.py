"""The figures of the complete board, counted separately in the data set, the database and the lake."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
from cassandra.concurrent import execute_concurrent_with_args

from demo import dataset
from demo.board import TABLE
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.lake.table import open_table

DOCUMENTED_FLIGHTS = 336_776
"""Flights of the whole year, as published by the authors: Wickham, Çetinkaya-Rundel and Grolemund, R for Data Science
(2nd edition), 3.1.2, https://r4ds.hadley.nz/data-transform#nycflights13.
"""
_IN_FLIGHT = 16
# Flights in the order of the demo. No two flights share all four values.
_FIRST = "SELECT * FROM flights ORDER BY time_hour, minute, carrier, flight LIMIT ?"


@dataclass(frozen=True)
class Figures:
    """The flights on the board by origin, the numbers of those that departed and arrived, their distances, and the
    cancelled flights, which are not on the board.
    """

    on_board: dict[str, int]
    departed: int
    arrived: int
    distance_miles: int
    cancelled: int

    @property
    def flights(self) -> int:
        """All flights."""
        return sum(self.on_board.values()) + self.cancelled


def published_figures(flights: int) -> Figures:
    """Return the data set's own figures of the first `flights` of the year (nycflights13, CC0)."""
    with duckdb.connect() as connection:
        connection.register("flights", dataset.read("flights"))
        answer = connection.execute(
            "SELECT origin, count(*) FILTER (dep_time IS NOT NULL), count(dep_delay), count(air_time), "
            "sum(distance) FILTER (dep_time IS NOT NULL), count(*) FILTER (dep_time IS NULL) "
            f"FROM ({_FIRST}) GROUP BY origin",
            [flights],
        )
        return _figures(answer.fetchall())


def database_figures(settings: Settings) -> Figures:
    """Return the figures from the database by CQL, day by day."""
    table = f"{settings.cassandra.keyspace}.{TABLE}"
    with connect(settings) as session:
        days = list(session.execute(f"SELECT DISTINCT origin, day, cancelled FROM {table}"))
        counts = session.prepare(
            f"SELECT count(scheduled), count(departed), count(arrived), sum(distance_miles) FROM {table} "
            "WHERE origin = ? AND day = ?"
        )
        keys = [(row.origin, row.day) for row in days]
        answers = execute_concurrent_with_args(session, counts, keys, _IN_FLIGHT, raise_on_first_error=True)
        return _figures(
            (row.origin, *answer.one(), len(row.cancelled or ()))
            for row, (_, answer) in zip(days, answers, strict=True)
        )


def lake_figures(settings: Settings) -> Figures:
    """Return the figures that DuckDB counts in the compacted view of the lake.

    Raises:
        WritetimeError: the lake does not have the table.
    """
    view = open_table(settings, f"{settings.cassandra.keyspace}.{TABLE}").view
    columns = ["origin", "day", "cancelled", "scheduled", "departed", "arrived", "distance_miles"]
    with duckdb.connect() as connection:
        connection.register("board", view.read(columns))
        # A static column is in each row of its day.
        answer = connection.execute(
            "SELECT origin, count(scheduled), count(departed), count(arrived), sum(distance_miles), "
            "coalesce(any_value(len(cancelled)), 0) FROM board GROUP BY origin, day"
        )
        return _figures(answer.fetchall())


def _figures(parts: Iterable[Sequence[Any]]) -> Figures:
    """Add up parts: origin, flights on the board, departed, arrived, miles (null if there are none), cancelled."""
    on_board: Counter[str] = Counter()
    totals = [0, 0, 0, 0]
    for origin, count, *numbers in parts:
        on_board[origin] += count
        totals = [total + int(number or 0) for total, number in zip(totals, numbers, strict=True)]
    return Figures(dict(sorted(on_board.items())), *totals)
