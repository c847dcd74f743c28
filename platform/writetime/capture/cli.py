"""`writetime agent | land | publish-segments | retire`, and what `writetime status` shows of agents."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from writetime import config
from writetime.capture import archives, cdc_log
from writetime.capture.agent import run
from writetime.capture.landing import Landing, captured_tables
from writetime.capture.metrics import read_status
from writetime.capture.watermarks import WatermarkTopic, statuses
from writetime.capture.watermarks import retire as retire_source
from writetime.config import Settings
from writetime.errors import WritetimeError
from writetime.instants import instant_text, parse_instant
from writetime.logs import log_as_json
from writetime.scylla_cdc.findings import finding_lines

log = logging.getLogger(__name__)


@click.command()
@click.option(
    "--snapshot-at",
    help="When the snapshot was begun that closes the gap in a ScyllaDB table's log, or that capture.snapshot_folders "
    "names.",
)
def agent(*, snapshot_at: str | None) -> None:
    """Publish changes to Kafka until SIGTERM or Ctrl-C: those of this machine's Cassandra node, or of ScyllaDB tables
    (capture.source)."""
    log_as_json()
    settings, stop = config.load(), _stopped_by_signal()
    if settings.capture.source == "scylla-cdc":
        published = cdc_log.run(settings, stop, None if snapshot_at is None else parse_instant(snapshot_at))
    elif snapshot_at is not None:
        raise WritetimeError('--snapshot-at is for capture.source = "scylla-cdc"')
    else:
        published = run(settings, stop)
    click.echo(", ".join(f"{count} changes of {table}" for table, count in sorted(published.items())) or "no changes")


@click.command()
@click.argument("tables", nargs=-1, metavar="[KS.TABLE]...")
@click.option("--follow", is_flag=True, help="Go on until SIGTERM or Ctrl-C; also with tables that are yet to come.")
@click.option("--accept-gap", is_flag=True, help="Go on where a topic begins, after a snapshot was brought in.")
def land(*, tables: tuple[str, ...], follow: bool, accept_gap: bool) -> None:
    """Bring captured changes from Kafka into the lake: those of all captured tables, or of these."""
    settings = config.load()
    if not follow:
        for table in tables or captured_tables(settings):
            click.echo(f"{Landing(settings, table).drain(accept_gap=accept_gap)} changes of {table}")
        return
    log_as_json()
    stop = _stopped_by_signal()
    landings: dict[str, Landing] = {}
    sources: WatermarkTopic | None = None
    while not stop.is_set():
        next_look = time.monotonic() + settings.capture.land_seconds
        try:
            sources = sources or WatermarkTopic(settings)
            for table in tables or captured_tables(settings):
                if table not in landings:
                    landings[table] = Landing(settings, table, sources)
        except WritetimeError as e:
            log.error("%s; trying again", e)
        for table, landing in landings.items():
            try:
                if count := landing.drain(accept_gap=accept_gap):
                    log.info("%d changes of %s landed", count, table)
            except WritetimeError as e:
                # What is wrong with one table stops no other.
                log.error("%s; trying again", e)
        stop.wait(max(next_look - time.monotonic(), 0))


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--follow", is_flag=True, help="Go on until SIGTERM or Ctrl-C.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="The folder that keeps how far the segments are; by default `segments` in capture.state.",
)
def publish_segments(*, paths: tuple[str, ...], follow: bool, checkpoint: Path | None) -> None:
    """Publish the changes in folders of commit log segments, each of one node, by Spark's tasks; a PATH may be a URL.

    Nothing is deleted. The exit status is 1 if changes of a segment are missing.
    """
    # Only this command needs Spark.
    from writetime.lake.spark import in_spark
    from writetime.spark import spark_session

    settings, stop = config.load(), _stopped_by_signal() if follow else None
    kept = checkpoint or archives.checkpoint_of(settings)
    with spark_session(settings) as spark:
        run, tasks = in_spark(spark), spark.sparkContext.defaultParallelism
        if stop is None:
            report = archives.publish_segments(settings, paths, kept, run=run, tasks=tasks)
        else:
            log_as_json()
            report = archives.follow_segments(settings, paths, kept, stop, run=run, tasks=tasks)
    changes = ", ".join(f"{count} changes of {table}" for table, count in sorted(report.changes.items()))
    click.echo(f"{report.segments} segments, {report.mutations} mutations: {changes or 'no changes'}")
    for key in report.growing:
        click.echo(f"not complete, and published as far as its _cdc.idx says: {key}", err=True)
    for key, reason in sorted(report.faults.items()):
        click.echo(f"changes are missing: {key}: {reason}", err=True)
    if report.faults:
        sys.exit(1)


@click.command()
@click.argument("source", metavar="HOST_ID|KS.LOG")
def retire(*, source: str) -> None:
    """Say that a node was decommissioned, or that a ScyllaDB table's CDC log is not followed any more: the lake no
    longer waits for its changes. Stop its agent first."""
    retire_source(config.load(), source)
    click.echo(f"{source} is retired: each table of the lake takes that up when its changes are landed next")


def _stopped_by_signal() -> threading.Event:
    stop = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stop.set())
    return stop


def status_lines(settings: Settings) -> Iterator[str]:
    """Yield what the agent of this state folder said last; nothing if there never was one."""
    found: dict[str, Any] | None = read_status(settings.capture.state)
    if found is not None:
        yield f"agent      {_ago(found['at'])}      state {settings.capture.state}"
        yield from _lines(found)


def agents_lines(settings: Settings) -> Iterator[str]:
    """Yield what the agents of all nodes and logs said last, which is in Kafka."""
    for source, found in statuses(settings).items():
        yield f"agent of {source}      {_ago(found['at'])}      {found.get('address', '')}".rstrip()
        yield from _lines(found)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield from _log_lines(found["logs"]) if "logs" in found else _node_lines(found)
    for table, snapshot in sorted(found["snapshots"].items()):
        if snapshot["state"] != "done":
            yield (
                f"  snapshot {table}: {snapshot['state']}, {snapshot['sstables_read']} of {snapshot['sstables']} "
                f"SSTables, {snapshot['changes']:,} changes"
            )
    for table, kinds in sorted(found["changes"].items()):
        yield f"  {table}: " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    for what, count in sorted(found["errors"].items()):
        yield f"  errors   {count} of {what}"


def _node_lines(found: Mapping[str, Any]) -> Iterator[str]:
    lag, totals = found["lag"], found["totals"]
    limit = lag["backlog_limit_bytes"]
    share = f" ({100 * lag['backlog_bytes'] / limit:.0f} % of cdc_total_space)" if limit else ""
    yield (
        f"  lag      {lag['lag_bytes']:,} bytes, {lag['lag_segments']} segments, {lag['lag_seconds']:.1f} s, "
        f"the oldest segment of {lag['oldest_segment_seconds']:.1f} s ago"
    )
    yield f"  backlog  {lag['backlog_bytes']:,} bytes{share}"
    yield (
        f"  segments {totals['segments']:,} done with, {totals['segments_set_aside']} set aside, "
        f"{totals['segments_vanished']} vanished; {lag['aside_segments']} of them are missing now"
    )
    if totals["mutations_set_aside"] or totals["changes_set_aside"]:
        yield f"  aside    {totals['mutations_set_aside']:,} mutations, {totals['changes_set_aside']:,} changes"
    if until := found["published_until"]:
        yield f"  all that was written is published up to {instant_text(until)}, {_ago(until / 1e6)}"
    if found["held_by"]:
        yield f"  held     {found['held_by']}"
    for table, reason in sorted(found.get("held", {}).items()):
        yield f"  held     {table}: {reason}"
    for table, reason in sorted(found.get("not_captured", {}).items()):
        yield f"  not captured: {table}: {reason}"


def _log_lines(logs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for table, found in sorted(logs.items()):
        until = found["until"]
        yield (
            f"  {table}: published up to {instant_text(until)}, {_ago(until / 1e6)}" if until else f"  {table}: not yet"
        )
        if found["fault"]:
            yield f"    {found['fault']}"
        for line in finding_lines(found.get("found", {})):
            yield f"    {line}"


def _ago(instant: float) -> str:
    return f"{time.time() - instant:.0f} s ago"
