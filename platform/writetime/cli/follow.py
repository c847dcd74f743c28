"""`writetime follow`."""

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext

import click

from writetime.cli.follow_screen import shown
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.extras import require
from writetime.core.logs import log_as_json
from writetime.core.signals import stopped_by_signal
from writetime.follow.program import Follower
from writetime.lake.table import is_in_lake
from writetime.landing.missing_tables import KnownTables

log = logging.getLogger(__name__)


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
