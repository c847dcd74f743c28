import asyncio
from typing import Any
from uuid import UUID

import pandas as pd
import pytest

from demo import dataset, enrichment, flights
from writetime.workqueue import GiveUp, Item, NewItem


def enrich(item: NewItem) -> dict[str, Any]:
    return asyncio.run(enrichment.enrich(Item("flights", UUID(int=0), item.key, item.payload, 1)))


def test_every_flight_gets_the_plane_and_the_weather_that_a_join_finds(is_long: bool) -> None:
    frame = flights.flights(2000 if is_long else 500)
    weather = dataset.read("weather")[["origin", "time_hour", "wind_speed"]].assign(seen=True)
    planes = dataset.read("planes").rename(columns={"year": "built"})[["tailnum", "model", "built"]].assign(known=True)
    joined = frame.merge(planes, how="left", on="tailnum").merge(weather, how="left", on=["origin", "time_hour"])
    assert len(joined) == len(frame)
    items = list(enrichment.items(frame))
    assert [item.key is None for item in items] == joined["tailnum"].isna().tolist()
    found = [enrich(item) for item in items]
    for row, result in zip(joined.to_dict("records"), found, strict=True):
        assert result["flight"] == f"{row['carrier']}{row['flight']}"
        assert result.keys() == enrichment.ENRICHED
        plane, sky = result["plane"], result["weather"]
        assert (plane is not None) == (row["known"] is True)
        assert (sky is not None) == (row["seen"] is True)
        if plane is not None:
            assert plane["model"] == row["model"]
            assert plane.get("built") == (None if pd.isna(row["built"]) else row["built"])
        if sky is not None:
            assert sky.get("wind_mph") == (None if pd.isna(row["wind_speed"]) else row["wind_speed"])
    assert 0 < sum(result["plane"] is None for result in found) < len(found) / 2


@pytest.mark.parametrize("payload", [None, "UA1545", {"flight": "UA1545"}])
def test_an_item_that_is_not_a_flight_is_given_up(payload: Any) -> None:
    with pytest.raises(GiveUp, match=r"not a flight: it needs rank, flight, carrier, .*, air_minutes"):
        enrich(NewItem(payload))
