"""The demo's report as one static HTML file, with charts that need no script."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

from demo.report import Report, rows_of

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430 }
h1 { font-size: 1.6rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.bar { background: #3b6ea8; height: .9rem; display: inline-block; border-radius: 2px }
.good { color: #1d7a3d } .bad { color: #b3261e; font-weight: bold }
"""


def write_page(report: Report, rates: Mapping[str, float], path: Path) -> None:
    """Write the page: verdict, sums of each stage, figures side by side, seconds of each step, and rates per second."""
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
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Writetime: the demo</title><style>{_STYLE}</style>"
        f'<h1>Writetime: the demo</h1><p class="{verdict[0]}">{verdict[1]}</p><p class="{sums[0]}">{sums[1]}</p>'
        f"<p>{passed} of {len(report.checks)} checks between the stages passed.</p>"
        f"<h2>Every stage adds up</h2><table>{stages}</table>"
        f"<h2>The departures board, counted three times</h2><table><tr><th></th>{head}</tr>{figures}</table>"
        f"<h2>Rates per second</h2>{_chart(rates)}<h2>Seconds of each step</h2>{_chart(report.seconds)}"
        f"<h2>Checks</h2><table>{checks}</table></html>\n"
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
