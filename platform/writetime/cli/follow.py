"""`writetime follow`."""

import sys
from contextlib import nullcontext

import click

from writetime.cli.follow_screen import shown
from writetime.cli.signals import stopped_by_signal
from writetime.core import config
from writetime.core.extras import require
from writetime.core.logs import log_as_json
from writetime.follow.program import Follower


@click.command()
@click.argument("tables", nargs=-1, metavar="[KS.TABLE]...")
@click.option("--accept-gap", is_flag=True, help="Continue at the start of the topic, after a backfill of a snapshot.")
def follow(*, tables: tuple[str, ...], accept_gap: bool) -> None:
    """Land changes, publish row events and refresh views until SIGTERM or Ctrl-C. Without names it follows all captured
    tables, also those that are captured later. A table that fails stops no other one. In a terminal it shows a table of
    its progress."""
    # At once: landing takes a fault of one table for one of that table.
    require("deltalake")
    log_as_json()
    follower = Follower(config.load(), tables, accept_gap=accept_gap)
    with shown(lambda: list(follower.tables.values())) if sys.stdout.isatty() else nullcontext():
        follower.run(stopped_by_signal())
