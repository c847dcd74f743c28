from dataclasses import replace
from pathlib import Path

from demo.report import Numbers, render
from writetime import config

GOOD = Numbers(
    flights=10,
    sent=110,
    acknowledged=110,
    calls=11,
    calls_repeated=1,
    broken=5,
    stored=100,
    rows_added=100,
    duplicates=10,
    dead=5,
    dead_letters_added=5,
    replay_per_second=1000.0,
    sink_per_second=500.0,
    enqueued=13,
    items_added=13,
    enriched=10,
    items_dead=3,
    with_plane=8,
    with_weather=10,
)


def test_numbers_that_add_up() -> None:
    assert GOOD.add_up
    text = render(GOOD, {"a": True}, config.Settings(), Path("demo.log"))
    assert "115 taken = 100 stored + 10 duplicates + 5 dead: nothing lost, nothing twice" in text
    assert "13 enqueued = 10 enriched + 3 dead: nothing lost, nothing twice" in text
    assert "1 of 1 passed" in text


def test_anything_lost_or_twice_shows() -> None:
    for wrong in (
        replace(GOOD, stored=99, rows_added=99),
        replace(GOOD, rows_added=101),
        replace(GOOD, dead_letters_added=4),
        replace(GOOD, items_added=12),
        replace(GOOD, enriched=9),
    ):
        assert not wrong.add_up
        assert "DO NOT ADD UP" in render(wrong, {"a": False}, config.Settings(), Path("demo.log"))
