import re
from dataclasses import replace
from pathlib import Path

from demo.figures import Figures
from demo.live import EVENT, VIEW, Delays
from demo.page import UI, write_page
from demo.report import Report, Stage, Station, Sum, render

FIGURES = Figures({"EWR": 5, "JFK": 4}, 9, 8, 9000, 1)
TAKEN = Sum((115, "taken"), [(100, "stored"), (10, "duplicates"), (5, "dead")])
STATIONS = [Station("clients", "post"), Station("sink", "stores", "ingest/user_events", (115, "messages"))]
GOOD = Report(
    [Stage("ingest", [TAKEN], "5 broken messages", [STATIONS])],
    {"data set": FIGURES, "database": FIGURES, "lake": FIGURES},
    {"a": True, "b": True},
    {"ingest": 10.0},
)
# Two writes: the first has not reached the view.
DELAYS = Delays({1: 10.0, 2: 10.5}, {EVENT: {1: 10.1, 2: 10.7}, VIEW: {2: 12.0}})


def shown(report: Report) -> str:
    return render(report, DELAYS, {"log": Path("demo.log")})


def test_sums_that_add_up_and_are_proven() -> None:
    assert GOOD.good
    text = shown(GOOD)
    assert "115 taken = 100 stored + 10 duplicates + 5 dead" in text
    assert "view = database = published figures; nothing lost, nothing twice" in text
    assert "2 of 2 passed" in text
    assert "row event  p50   100 ms, p99   200 ms (2 writes)" in text
    assert len(text.splitlines()) < 45


def test_wrong_sums_and_figures_show() -> None:
    wrong = replace(GOOD, stages=[Stage("ingest", [replace(TAKEN, total=(114, "taken"))])])
    assert not wrong.good
    assert "114 taken ≠ 100 stored" in shown(wrong)
    assert "DO NOT ADD UP" in shown(wrong)
    wrong = replace(GOOD, figures={**GOOD.figures, "lake": replace(FIGURES, arrived=7)})
    assert not wrong.good
    assert "FIGURES DIFFER" in shown(wrong)
    wrong = replace(GOOD, checks={"a": True, "b": False})
    assert not wrong.good
    assert "1 of 2 passed; failed: b" in shown(wrong)


def test_page(tmp_path: Path) -> None:
    write_page(GOOD, {"events stored": 1234.0}, tmp_path / "demo.html", DELAYS)
    text = (tmp_path / "demo.html").read_text()
    for part in ("115 taken = 100 stored", "view = database = published figures", "1,234", "from JFK", "9,000"):
        assert part in text
    assert "<b>115</b> messages" in text
    assert f'<a href="{UI}/assets/ingest/user_events">sink</a>' in text
    assert "10 flights, 9,000 miles, in each of 3 counts" in text
    assert "Sums that hold: 1 of 1. Checks between the stages that passed: 2 of 2." in text
    assert text.count("<polyline") == 2
    assert re.findall(r"<span>([\d,]+ ms)</span>", text) == ["500 ms", "1,000 ms", "1,500 ms", "2,000 ms"]
    assert "http-equiv" not in text
    assert ", now</span>" not in text


def test_page_of_the_live_part(tmp_path: Path) -> None:
    write_page(GOOD, {}, tmp_path / "demo.html", Delays(), is_live=True)
    assert "http-equiv" in (tmp_path / "demo.html").read_text()
    write_page(GOOD, {}, tmp_path / "demo.html", DELAYS, is_live=True)
    text = (tmp_path / "demo.html").read_text()
    assert text.count(", now</span>") == 2
    assert DELAYS.fresh(VIEW, 12.0) == 1.5


def test_ages_grow_until_a_newer_write_is_seen() -> None:
    late = Delays({1: 10.0, 2: 10.5, 3: 10.75, 4: 11.0}, {EVENT: {2: 11.5, 3: 12.0, 1: 12.5, 4: 12.0}, VIEW: {}})
    assert late.ages(EVENT) == [(11.5, 1.0), (12.0, 1.5), (12.0, 1.0)]
    assert late.ages(VIEW) == []
