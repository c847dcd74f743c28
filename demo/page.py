"""The demo's report as one static HTML file, for wide and narrow screens. It needs no script."""

import time
from collections.abc import Mapping
from html import escape
from itertools import count
from pathlib import Path

from demo.live import Delays
from demo.report import Report, Stage, Station, rows_of
from demo.settings import LIVE_TABLE
from writetime.core.counts import pluralize

# The default address of `make ui`.
UI = "http://127.0.0.1:3000"
_STYLE = Path(__file__).with_name("page.css")
_WIDTH, _HEIGHT = 800, 160
_LINES = 4
_COLOURS = ("#3b6ea8", "#c1761b")
_TITLES = {
    "ingest": "Events over HTTP, each stored once",
    "work queue": "Work, done once for each item",
    "replay queue": "Batches that can be read again, and a table made from them",
}


def write_page(
    report: Report, rates: Mapping[str, float], path: Path, delays: Delays, *, is_live: bool = False
) -> None:
    """Write the page. It shows the verdict with its numbers, the delays and ages of the live part, the stations of the
    data, figures side by side, sums, rates per second, steps and checks. While the live part runs, the browser loads
    the page again each second.
    """
    again = "<meta http-equiv=refresh content=1>" if is_live else ""
    text = (
        f"<!doctype html><html lang=en><meta charset=utf-8>{again}"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>Writetime: the demo</title><style>{_STYLE.read_text()}</style><h1>Writetime: the demo</h1>"
        f"{_verdict(report)}{_live(delays, is_live)}{_pipeline(report)}{_figures(report)}{_sums(report)}"
        "<h2>Rates per second</h2><p class=note>On this machine, while all servers and programs share it.</p>"
        f"{_bars(rates)}<h2>What the demo did, and how many seconds it took</h2>{_bars(report.steps)}"
        f"{_checks(report)}</html>\n"
    )
    # So a browser never reads half of the page.
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def _verdict(report: Report) -> str:
    first, *others = report.figures.values()
    total = f"{first.flights:,} flights, {first.distance_miles:,} miles, in each of {len(others) + 1} counts"
    sums = [total for stage in report.stages for total in stage.sums]
    holding, passed = sum(of.holds for of in sums), sum(report.checks.values())
    lines = [
        (report.proven, f"view = database = published figures: {total}", "the figures differ"),
        (report.add_up, "nothing lost, nothing twice", "the numbers do not add up"),
    ]
    shown = "".join(f'<p class="{"good" if ok else "bad"}">{good if ok else bad}</p>' for ok, good, bad in lines)
    return (
        f"{shown}<p>Sums that hold: {holding} of {len(sums)}. "
        f"Checks between the stages that passed: {passed} of {len(report.checks)}.</p>"
    )


def _live(delays: Delays, is_live: bool) -> str:
    now = time.time()
    cards = ""
    for where in delays.seen:
        p50, p99, count = delays.percentiles(where)
        cards += _card(
            f"{p50 * 1000:,.0f} ms",
            f"{where}: half of {pluralize(count, 'write', ',')} sooner; 99% within {p99 * 1000:,.0f} ms",
        )
        if is_live and (age := delays.fresh(where, now)) is not None:
            cards += _card(f"{age * 1000:,.0f} ms", f"age of the newest write in the {where}, now")
    return (
        f"<h2>From a write to its row event, and to the view{' (now)' if is_live else ''}</h2>"
        f"<p>A program updates rows of <code>{LIVE_TABLE}</code>, and <code>writetime follow</code> takes each write "
        "to Kafka and to the view. The time starts when the database acknowledges the write. It ends when a consumer "
        f"has the row event, or when the view's files have the row.</p><div class=cards>{cards}</div>"
        f"{_drawn(delays, now if is_live else None)}"
    )


def _card(number: str, text: str) -> str:
    return f"<div class=card><b>{number}</b><span>{escape(text)}</span></div>"


def _pipeline(report: Report) -> str:
    """Draw the stations of each stage, with the numbers of items that passed between them."""
    stages = "".join(
        f"<h3>{escape(_title(stage))}</h3>"
        + "".join(f"<div class=flow>{''.join(map(_station, stations))}</div>" for stations in stage.flows)
        + f"<p class=note>{escape(stage.note)}</p>"
        for stage in report.stages
    )
    return (
        "<h2>The way of the data</h2><p class=note>Each arrow has the number of what passed it. Names lead to the "
        f"asset in the web UI, while <code>make ui WORKSPACE=demo/workspace.yaml</code> runs.</p>{stages}"
    )


def _title(stage: Stage) -> str:
    return _TITLES.get(stage.name) or f"The table {stage.name}, captured, as row events and as a view"


def _station(station: Station) -> str:
    edge = ""
    if station.arrived is not None:
        count, what = station.arrived
        edge = f"<div class=edge><b>{count:,}</b> {escape(what)}<i></i></div>"
    return (
        f'{edge}<div class=station><b><a href="{UI}/assets/{escape(station.asset)}">{escape(station.name)}</a></b>'
        f"<span>{escape(station.does)}</span></div>"
    )


def _figures(report: Report) -> str:
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in report.figures)
    rows = "".join(
        f"<tr><td>{label}</td>" + "".join(f'<td class="n">{number:,}</td>' for number in numbers) + "</tr>"
        for label, numbers in rows_of(report.figures)
    )
    return (
        f"<h2>The departures board, counted {len(report.figures)} times</h2>"
        f"<div class=scroll><table><tr><th></th>{head}</tr>{rows}</table></div>"
    )


def _sums(report: Report) -> str:
    rows = "".join(
        f"<tr><td>{escape(stage.name) if not i else ''}</td>"
        f'<td class="{"good" if total.holds else "bad"}">{escape(str(total))}</td></tr>'
        for stage in report.stages
        for i, total in enumerate(stage.sums)
    )
    return f"<h2>Every stage adds up</h2><table>{rows}</table>"


def _checks(report: Report) -> str:
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="{"good" if ok else "bad"}">{"passed" if ok else "failed"}</td></tr>'
        for name, ok in report.checks.items()
    )
    opened = "" if all(report.checks.values()) else " open"
    return (
        f"<h2>Checks</h2><details{opened}><summary>{pluralize(len(report.checks), 'check')} of Dagster</summary>"
        f"<div class=scroll><table>{rows}</table></div></details>"
    )


def _drawn(delays: Delays, now: float | None) -> str:
    """Draw the age of the newest visible write in each place, until now or until its last change."""
    found = {where: ages for where in delays.seen if (ages := delays.ages(where))}
    if not found:
        return ""
    if now is not None:
        found = {where: [*ages, (now, now - ages[-1][0] + ages[-1][1])] for where, ages in found.items()}
    began, until = (of(instant for ages in found.values() for instant, _ in ages) for of in (min, max))
    step = _step(max(age for ages in found.values() for _, age in ages) * 1000)
    wide, high = _WIDTH / ((until - began) or 1), _HEIGHT / (step * _LINES)
    colours = dict(zip(delays.seen, _COLOURS, strict=True))
    lines = "".join(
        f'<polyline stroke="{colours[where]}" points="'
        + " ".join(f"{(instant - began) * wide:.1f},{_HEIGHT - age * 1000 * high:.1f}" for instant, age in ages)
        + f'"><title>{escape(where)}</title></polyline>'
        for where, ages in found.items()
    )
    scale = "".join(
        f'<i style="bottom:{100 * n / _LINES:.0f}%"><span>{step * n:,} ms</span></i>' for n in range(1, _LINES + 1)
    )
    places = ", ".join(f'<b style="color:{colours[where]}">{escape(where)}</b>' for where in found)
    return (
        f"<p class=note>Age of the newest write by where it is seen, over {until - began:,.0f} seconds: {places}</p>"
        f'<div class=chart>{scale}<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="age of the newest write">{lines}</svg></div>'
    )


def _step(most: float) -> int:
    """Return the distance between the lines of a scale with this maximum: 1, 2 or 5 times a power of ten."""
    return next(step for power in count() for of in (1, 2, 5) if (step := of * 10**power) * _LINES >= most)


def _bars(values: Mapping[str, float]) -> str:
    most = max(values.values(), default=0) or 1
    return (
        "<div class=bars>"
        + "".join(
            f'<span>{escape(name)}</span><span class="n">{value:,.0f}</span>'
            f'<span class="bar" style="width:{100 * value / most:.1f}%"></span>'
            for name, value in values.items()
        )
        + "</div>"
    )
