import pandas as pd

from demo import flights


def test_every_flight_becomes_the_events_of_its_record() -> None:
    count = 3000
    frame = flights.flights(count)
    types = pd.Series([e["eventType"] for f in frame.to_dict("records") for e in flights.events(f)]).value_counts()
    assert types["scheduled"] == count
    assert types["cancelled"] == frame["dep_time"].isna().sum()
    assert types["departed"] == frame["dep_time"].notna().sum()
    assert types["arrived"] == frame["air_time"].notna().sum()


def test_first_flight_of_the_year() -> None:
    [first] = flights.flights(1).to_dict("records")
    scheduled, departed, arrived = flights.events(first)
    assert scheduled["userId"] == "N14228"
    assert scheduled["timestamp"] == "2013-01-01T10:15:00+00:00"
    assert departed["payload"]["delay_minutes"] == 2
    assert arrived["payload"]["air_minutes"] == 227
