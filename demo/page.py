"""The demo's report as one static HTML file, with charts that need no script."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

from demo.live import Delays
from demo.report import Report, rows_of

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430 }
h1 { font-size: 1.6rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.bar { background: #3b6ea8; height: .9rem; display: inline-block; border-radius: 2px }
.good { color: #1d7a3d } .bad { color: #b3261e; font-weight: bold }
"""
_WIDTH, _HEIGHT = 800, 160
_COLOURS = ("#3b6ea8", "#c1761b")


def write_page(
    report: Report, rates: Mapping[str, float], path: Path, delays: Delays, *, is_live: bool = False
) -> None:
    """Write the page: verdict, delays of the live part, sums of each stage, figures side by side, seconds of each step,
    and rates per second. While the live part runs, the browser loads the page again each second.
    """
    verdict = ("good", "view = database = published figures") if report.proven else ("bad", "the figures differ")
    sums = ("good", "nothing lost, nothing twice") if report.add_up else ("bad", "the numbers do not add up")
    passed = sum(report.checks.values())
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in report.figures)
    figures = "".join(
        f"<tr><td>{label}</td>" + "".join(f'<td class="n">{number:,}</td>' for number in numbers) + "</tr>"
        for label, numbers in rows_of(report.figures)
    )
    stages = "".join(
        f"<tr><td>{stage.name if not i else ''}</td>"
        f'<td class="{"good" if total.holds else "bad"}">{escape(str(total))}</td></tr>'
        for stage in report.stages
        for i, total in enumerate(stage.sums)
    )
    checks = "".join(
        f'<tr><td>{escape(name)}</td><td class="{"good" if ok else "bad"}">{"passed" if ok else "failed"}</td></tr>'
        for name, ok in report.checks.items()
    )
    again = "<meta http-equiv=refresh content=1>" if is_live else ""
    text = (
        f"<!doctype html><html lang=en><meta charset=utf-8>{again}"
        f"<title>Writetime: the demo</title><style>{_STYLE}</style>"
        f'<h1>Writetime: the demo</h1><p class="{verdict[0]}">{verdict[1]}</p><p class="{sums[0]}">{sums[1]}</p>'
        f"<p>{passed} of {len(report.checks)} checks between the stages passed.</p>"
        f"<h2>From a write to its row event, and to the view{' (now)' if is_live else ''}</h2>{_drawn(delays)}"
        f"<h2>Every stage adds up</h2><table>{stages}</table>"
        f"<h2>The departures board, counted three times</h2><table><tr><th></th>{head}</tr>{figures}</table>"
        f"<h2>Rates per second</h2>{_chart(rates)}<h2>Seconds of each step</h2>{_chart(report.seconds)}"
        f"<h2>Checks</h2><table>{checks}</table></html>\n"
    )
    # A browser never reads half of it.
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def _drawn(delays: Delays) -> str:
    """Draw the delay of each write, by the time of its acknowledgement."""
    found = {where: delays.of(where) for where in delays.seen}
    most = max((delay for of in found.values() for delay in of.values()), default=0) or 1
    began, until = (least(delays.acknowledged.values(), default=0) for least in (min, max))
    lines, wide, high = "", _WIDTH / ((until - began) or 1), _HEIGHT / most
    for (where, of), colour in zip(found.items(), _COLOURS, strict=True):
        points = " ".join(
            f"{(delays.acknowledged[n] - began) * wide:.1f},{_HEIGHT - of[n] * high:.1f}" for n in sorted(of)
        )
        lines += f'<polyline fill="none" stroke="{colour}" points="{points}"><title>{where}</title></polyline>'
    legend = "".join(
        f'<tr><td style="color:{colour}">{escape(line)}</td></tr>'
        for line, colour in zip(delays.lines(), _COLOURS, strict=True)
    )
    return (
        f"<table>{legend}</table><p>Each point is a write. Top of the drawing: {most * 1000:,.0f} ms.</p>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" style="width:100%;border-bottom:1px solid">{lines}</svg>'
    )


def _chart(values: Mapping[str, float]) -> str:
    most = max(values.values(), default=0) or 1
    return (
        "<table>"
        + "".join(
            f'<tr><td>{escape(name)}</td><td class="n">{value:,.0f}</td>'
            f'<td><span class="bar" style="width:{24 * value / most:.2f}rem"></span></td></tr>'
            for name, value in values.items()
        )
        + "</table>"
    )
