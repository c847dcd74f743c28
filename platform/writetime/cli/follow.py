"""`writetime follow`, and what it shows in a terminal: a table that is drawn again twice a second, below its log."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from writetime.core import config
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.extras import WhenUsed, require
from writetime.core.logs import log_as_json
from writetime.core.signals import stopped_by_signal
from writetime.follow.pipeline import TablePipeline
from writetime.follow.program import Follower
from writetime.follow.steps import Step
from writetime.lake.table import is_in_lake
from writetime.landing.missing_tables import KnownTables

if TYPE_CHECKING:
    from rich import live
    from rich import table as drawn
else:
    live, drawn = WhenUsed("rich.live"), WhenUsed("rich.table")

log = logging.getLogger(__name__)

_SHOWN = 20


@click.command()
@click.argument("tables", nargs=-1, metavar="[KS.TABLE]...")
@click.option("--accept-gap", is_flag=True, help="Continue at the start of the topic, after a backfill of a snapshot.")
def follow(*, tables: tuple[str, ...], accept_gap: bool) -> None:
    """Land changes, publish row events and refresh views until SIGTERM or Ctrl-C. Without names it follows all captured
    tables, also those that are captured later. A table that fails does not stop the others. In a terminal it shows its
    progress."""
    # Checked now, because landing would report this fault for each table.
    require("deltalake")
    log_as_json()
    settings = config.load()
    _check_names(settings, tables)
    follower = Follower(settings, tables, accept_gap=accept_gap)
    with shown(lambda: list(follower.tables.values())) if sys.stdout.isatty() else nullcontext():
        follower.run(stopped_by_signal())


def _check_names(settings: Settings, names: Sequence[str]) -> None:
    """Log the names that no table has, and the tables whose changes the database does not log. Both may change while
    others are followed. Raises WritetimeError: no table has any of the names.
    """
    absent = [name for name in names if not is_in_lake(settings, name)]
    if not absent:
        return
    known = KnownTables(settings)
    unknown = {name: known.misspelt(name) for name in absent if known.is_unknown(name)}
    if len(unknown) == len(names):
        raise WritetimeError("; ".join(map(str, unknown.values())))
    for name in absent:
        if fault := unknown.get(name) or known.not_captured(name):
            log.warning("%s", fault)


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
