"""`writetime agent`, and what `writetime status` shows of it."""

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import click

from writetime import config
from writetime.capture.agent import run
from writetime.capture.metrics import read_status
from writetime.config import Settings
from writetime.logs import log_as_json


@click.command()
def agent() -> None:
    """Publish the changes of this machine's Cassandra node to Kafka until SIGTERM or Ctrl-C."""
    log_as_json()
    stop = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stop.set())
    published = run(config.load(), stop)
    click.echo(", ".join(f"{count} changes of {table}" for table, count in sorted(published.items())) or "no changes")


def status_lines(settings: Settings) -> Iterator[str]:
    """Yield what the agent of this state folder said last; nothing if there never was one."""
    found: dict[str, Any] | None = read_status(settings.capture.state)
    if found is None:
        return
    lag, totals = found["lag"], found["totals"]
    limit = lag["backlog_limit_bytes"]
    share = f" ({100 * lag['backlog_bytes'] / limit:.0f} % of cdc_total_space)" if limit else ""
    yield f"agent      {time.time() - found['at']:.0f} s ago      state {settings.capture.state}"
    yield f"  lag      {lag['bytes']:,} bytes, {lag['segments']} segments, {lag['seconds']:.1f} s"
    yield f"  backlog  {lag['backlog_bytes']:,} bytes{share}"
    yield (
        f"  segments {totals['segments']:,} done with, {totals['segments_set_aside']} set aside, "
        f"{totals['segments_vanished']} vanished"
    )
    for table, kinds in sorted(found["changes"].items()):
        yield f"  {table}: " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    for what, count in sorted(found["errors"].items()):
        yield f"  errors   {count} of {what}"
