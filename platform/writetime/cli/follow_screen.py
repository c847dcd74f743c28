"""The display of `writetime follow` in a terminal: a table that is drawn again twice a second, below its log."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from writetime.core.counts import pluralize
from writetime.core.extras import WhenUsed
from writetime.follow.pipeline import TablePipeline
from writetime.follow.steps import Step

if TYPE_CHECKING:
    from rich import live
    from rich import table as drawn
else:
    live, drawn = WhenUsed("rich.live"), WhenUsed("rich.table")

_SHOWN = 20


@contextmanager
def shown(tables: Callable[[], Iterable[TablePipeline]]) -> Iterator[None]:
    """Show tables for a `with` block."""
    with live.Live(get_renderable=lambda: as_table(tables()), refresh_per_second=2):
        yield


def as_table(tables: Iterable[TablePipeline]) -> "drawn.Table":
    """Return the lines to show: tables that fail come first, then those that are furthest behind."""
    ordered = sorted(tables, key=lambda table: (not _faults(table), -table.waiting, table.name))
    found = drawn.Table(caption=f"{pluralize(len(ordered), 'table')}" if len(ordered) > _SHOWN else None)
    for name in ("table", "landed", "waiting", "row events", "published", "view", "fault"):
        found.add_column(name, justify="left" if name in ("table", "fault") else "right")
    for table in ordered[:_SHOWN]:
        steps = [_text(step) for step in (table.events, table.publishing, table.view)]
        found.add_row(table.name, f"{table.landing.rows:,}", f"{table.waiting:,}", *steps, "; ".join(_faults(table)))
    return found


def _faults(table: TablePipeline) -> list[str]:
    faults = [f"{step.name}: {step.fault}" for step in table.steps if step.fault]
    landing = table.landing.report.fault
    return [f"landing: {landing}", *faults] if landing else faults


def _text(step: Step) -> str:
    """Return the rows of a step, and how long it took to do the last ones, or since when it is behind."""
    behind = step.behind_since
    if step.fault and behind:
        return f"{step.rows:,}, behind {time.time() - behind:,.0f} s"
    return f"{step.rows:,}, {step.delay * 1000:,.0f} ms"
