"""`writetime agent | land | publish-segments | retire | forget`."""

import sys
from pathlib import Path

import click

from writetime.capture import archives, scylla_agent
from writetime.capture.commitlog_agent import run
from writetime.core import config
from writetime.core.counts import pluralize
from writetime.core.errors import MissingTable, WritetimeError
from writetime.core.extras import require
from writetime.core.instants import parse_instant
from writetime.core.logs import log_as_json
from writetime.core.signals import stopped_by_signal
from writetime.landing.following import LandedTables
from writetime.landing.forgetting import find_traces
from writetime.landing.missing_tables import message_of
from writetime.landing.skipping import MessagePlace, skip
from writetime.wire.topic_names import dead_changes_topic
from writetime.wire.watermarks import retire as retire_source


@click.command()
@click.option(
    "--snapshot-at",
    help="Start time of the snapshot that closes the gap in a ScyllaDB table's log, or that capture.snapshot_folders "
    "names.",
)
def agent(*, snapshot_at: str | None) -> None:
    """Publish changes to Kafka until SIGTERM or Ctrl-C. They come from the commit log of this machine's Cassandra node,
    or from the CDC logs of ScyllaDB tables (capture.source)."""
    log_as_json()
    settings, stop = config.load(), stopped_by_signal()
    if settings.capture.source == "scylla-cdc":
        published = scylla_agent.run(settings, stop, None if snapshot_at is None else parse_instant(snapshot_at))
    elif snapshot_at is not None:
        raise WritetimeError('--snapshot-at is for capture.source = "scylla-cdc"')
    else:
        published = run(settings, stop)
    click.echo(
        ", ".join(f"{pluralize(count, 'change')} of {table}" for table, count in sorted(published.items()))
        or "no changes"
    )


@click.command()
@click.argument("tables", nargs=-1, metavar="[KS.TABLE]...")
@click.option(
    "--accept-gap",
    is_flag=True,
    help="Continue at the start of the topic, although earlier messages are lost or the topic was replaced. Load a "
    "new snapshot first.",
)
@click.option(
    "--skip",
    "places",
    multiple=True,
    metavar="TOPIC/PARTITION@OFFSET",
    help="Copy a message that cannot be landed to TOPIC.dead, and continue after it. May be repeated. The table's "
    "watermark stops until a newer snapshot is loaded.",
)
def land(*, tables: tuple[str, ...], accept_gap: bool, places: tuple[str, ...]) -> None:
    """Bring captured changes from Kafka into the lake. Without names it lands all captured tables. A table that fails
    does not stop the others. The exit status is 1 if a table failed.
    """
    # Checked now, because landing would report this fault for each table.
    require("deltalake")
    settings = config.load()
    for place in map(MessagePlace.parse, places):
        size = skip(settings, place)
        click.echo(
            f"{place}: {pluralize(size, 'byte')} copied to {dead_changes_topic(place.table)}; landing continues after "
            f"it. The watermark of {place.table} stops until a new snapshot is in the lake"
        )
    failed = []
    for table, outcome in LandedTables(settings, tables, accept_gap=accept_gap).land_once():
        if isinstance(outcome, Exception):
            failed.append(table)
            reason = message_of(settings, outcome) if isinstance(outcome, MissingTable) else outcome
            click.echo(f"Error: {table}: {reason}", err=True)
        else:
            click.echo(f"{pluralize(outcome, 'change')} of {table}")
    if failed:
        click.echo(f"{pluralize(len(failed), 'table')} not landed: {', '.join(failed)}", err=True)
        sys.exit(1)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--follow", is_flag=True, help="Continue until SIGTERM or Ctrl-C.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="The folder of the checkpoint; default: `segments` in capture.state_dir.",
)
def publish_segments(*, paths: tuple[str, ...], follow: bool, checkpoint: Path | None) -> None:
    """Publish the changes in folders of commit log segments, in Spark tasks. A folder holds segments of one node; a
    PATH may be a URL. Nothing is deleted. The exit status is 1 if changes of a segment are missing.
    """
    # Only this command needs Spark.
    from writetime.clients.spark import spark_session
    from writetime.lake.spark_tasks import in_spark, tasks_at_once

    settings, stop = config.load(), stopped_by_signal() if follow else None
    kept = checkpoint or archives.checkpoint_of(settings)
    with spark_session(settings) as spark:
        run, tasks = in_spark(spark), tasks_at_once(spark)
        if stop is None:
            report = archives.publish_segments(settings, paths, kept, run=run, tasks=tasks)
        else:
            log_as_json()
            report = archives.follow_segments(settings, paths, kept, stop, run=run, tasks=tasks)
    changes = ", ".join(f"{pluralize(count, 'change')} of {table}" for table, count in sorted(report.changes.items()))
    click.echo(
        f"{pluralize(report.segments, 'segment')}, {pluralize(report.mutations, 'mutation')}: {changes or 'no changes'}"
    )
    for kind, count in sorted(report.errors.items()):
        click.echo(f"waited for {pluralize(count, f'{kind} error')}", err=True)
    for key in report.growing:
        click.echo(f"not complete, published up to the offset in its _cdc.idx: {key}", err=True)
    for key, reason in sorted(report.faults.items()):
        click.echo(f"changes are missing: {key}: {reason}", err=True)
    if report.faults:
        sys.exit(1)


@click.command()
@click.argument("source", metavar="HOST_ID|KS.LOG")
def retire(*, source: str) -> None:
    """Record that a node or a CDC log is no longer a source. The lake then no longer waits for its changes. Stop its
    agent first."""
    retire_source(config.load(), source)
    click.echo(f"{source} is retired: each table applies this when its next changes land")


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def forget(*, table: str, yes: bool) -> None:
    """Delete all data that the platform has about a table. This is for a table that was dropped: its topics, its
    schemas, its tables in the Iceberg catalog, its folder in the lake, and the progress of this machine's agent. The
    database is not touched. The exit status is 1 if something is left, as when the catalog does not answer."""
    traces = find_traces(config.load(), table)
    if not traces:
        click.echo(f"there is no data of {table}")
        return
    click.echo(f"Data of {table}:")
    for trace in traces:
        click.echo(f"  {trace.text}")
    if not yes:
        click.confirm("Delete all of this? It cannot be undone", abort=True)
    left = False
    for trace in traces:
        try:
            trace.delete()
        except WritetimeError as e:
            if not trace.may_stay:
                raise
            left = True
            click.echo(f"Error: not deleted: {trace.text}: {e}", err=True)
        else:
            click.echo(f"deleted: {trace.text}")
    if left:
        click.echo("Run the command again to delete what is left, or delete it there", err=True)
        sys.exit(1)
