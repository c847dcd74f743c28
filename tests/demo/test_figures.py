from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from demo import board, dataset, figures, flights


def test_the_year_has_the_flights_that_its_authors_published() -> None:
    year = figures.published_figures(figures.DOCUMENTED_FLIGHTS)
    assert year == figures.published_figures(figures.DOCUMENTED_FLIGHTS + 1)
    assert year.flights == figures.DOCUMENTED_FLIGHTS
    flown = dataset.read("flights").dropna(subset=["dep_time"])
    assert year.on_board == flown.groupby("origin").size().to_dict()
    assert year.distance_miles == flown["distance"].sum()


@pytest.mark.parametrize("count", [1, 1000, 3001])
def test_the_first_flights_are_those_of_the_demo(count: int) -> None:
    found = figures.published_figures(count)
    events = [e for f in flights.flights(count).to_dict("records") for e in flights.events(f)]
    types = pd.Series([e["eventType"] for e in events]).value_counts()
    assert found.flights == types["scheduled"] == count
    assert found.departed == sum(found.on_board.values()) == types["departed"]
    assert (found.arrived, found.cancelled) == (types["arrived"], types.get("cancelled", 0))
    departures = pd.Series([e["payload"]["origin"] for e in events if e["eventType"] == "departed"])
    assert found.on_board == departures.value_counts().to_dict()


def test_write_times_rise_along_the_queue() -> None:
    published = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms) for ms in (0, 50, 60_000)]
    times = [board.write_time(at, item, step) for at in published for item in (0, 1, 999) for step in range(3)]
    assert times == sorted(set(times))
    # Near to when the batch was published: ScyllaDB logs no write that is older than the streams of its log.
    assert times[0] == 1_767_225_600_000_000
