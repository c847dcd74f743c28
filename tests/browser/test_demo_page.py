"""The page of the demo on the screen of a phone, with names and numbers like those of a real run."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.figures import Figures
from demo.live import EVENT, VIEW, Delays
from demo.page import write_page
from demo.report import Report, Stage, Station, Sum
from tests.support.browser import browsing, needs_chromium

pytestmark = needs_chromium

STATIONS = [
    Station("clients", "post real flights of 2013 as events, some calls twice", "sources/flights"),
    Station("writetime serve", "answers 202", "sources/user_events_topic", (60_358, "events")),
    Station("job ingest", "drops duplicates", "ingest/user_events", (60_363, "messages")),
    Station("table user_events", "has each event once", "ingest/user_events", (59_758, "new rows")),
]
TAKEN = Sum((60_363, "taken"), [(59_758, "stored"), (600, "duplicates"), (5, "dead")])
BOARD = Figures({"EWR": 7_255, "JFK": 6_770, "LGA": 5_788}, 19_813, 19_758, 20_092_812, 187)
STEPS = {
    "replaying 20,000 real flights as HTTP events and work items (job replay_flights)": 21.0,
    "landing and merging them, renewing the views, publishing row events (job catch_up)": 30.0,
}
CHECKS = {f"writetime/{table}/{table}_view: rows_are_those_of_the_database": True for table in ("flights", "events")}
REPORT = Report(
    [Stage(name, [TAKEN, TAKEN], "302 calls, 3 made twice", [STATIONS]) for name in ("ingest", "user_events")],
    {"data set": BOARD, "database": BOARD, "lake": BOARD},
    CHECKS,
    STEPS,
)


def delays(now: float) -> Delays:
    """Those of 20 seconds of 50 writes each."""
    acknowledged = {n: now - 21 + n / 50 for n in range(1000)}
    seen = {EVENT: {n: at + 0.2 for n, at in acknowledged.items()}, VIEW: {}}
    for n, at in acknowledged.items():
        seen[VIEW][n] = at + 0.1 + (50 - n % 50) / 50
    return Delays(acknowledged, seen)


@pytest.fixture(scope="module")
def phone() -> Iterator[Any]:
    with browsing(390, 844, is_mobile=True, has_touch=True, device_scale_factor=2) as context:
        yield context.new_page()


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "over"])
def test_the_page_fits_a_phone(phone: Any, tmp_path: Path, request: pytest.FixtureRequest, is_live: bool) -> None:
    """Nothing is wider than the screen, but tables that scroll by themselves; and no text is too small to read."""
    write_page(REPORT, {"flights merged": 1234.0}, tmp_path / "demo.html", delays(time.time()), is_live=is_live)
    # The page that loads itself again would do so during the test.
    phone.set_content((tmp_path / "demo.html").read_text().replace("<meta http-equiv=refresh content=1>", ""))
    phone.locator("summary").click()
    if folder := request.config.getoption("--screenshots"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        phone.screenshot(path=Path(folder) / f"demo-{'live' if is_live else 'over'}.png", full_page=True)
    assert phone.evaluate("innerWidth") == 390
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    wide = """[...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, svg")
        && (e.getBoundingClientRect().right > 390.5 || e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0))
        .map(e => e.outerHTML.slice(0, 200))"""
    assert phone.evaluate(wide) == []
    sizes = "[...document.querySelectorAll('body *')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    assert min(phone.evaluate(sizes)) >= 12
