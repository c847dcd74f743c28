"""The shell command `writetime`."""

import json
import logging
import signal
import sys
import threading
from typing import Any

import click

from writetime import config, database, servers
from writetime.capture.cli import agent, agents_lines, land, publish_segments, retire, status_lines
from writetime.errors import WritetimeError
from writetime.ingest import deadletters, ingress, sink
from writetime.ingest.topics import ensure_ingest_topics
from writetime.kafka import beginning_offsets, end_offsets
from writetime.lake.cli import backfill, maintain, snapshot, view
from writetime.replay.cli import replay_group
from writetime.rows.cli import publish, rebuild, rows
from writetime.scylla_cdc.cli import scylla_cdc
from writetime.storage.cli import commitlog, sstable
from writetime.verify.cli import verify
from writetime.workqueue.cli import queue_group, work


class _Group(click.Group):
    """Shows a `WritetimeError` as one line and ends with status 1; anything else is a bug and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except WritetimeError as e:
            raise click.ClickException(str(e)) from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="writetime")
def main() -> None:
    """Writetime: what the lake says is what the database would answer."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # The driver logs each refused connection attempt; the error that follows says it once.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)


@main.command()
def up() -> None:
    """Start the embedded servers that are not running, then do what `init` does."""
    settings = config.load()
    for server, started in servers.up(settings):
        state = "started" if started else "was running"
        click.echo(f"{server.name:<10} {state:<12} {_ports(server)}  log {server.log_file}")
    _init(settings)


@main.command()
def down() -> None:
    """Stop the embedded servers; their data stays."""
    for server, stopped in servers.down(config.load()):
        click.echo(f"{server.name:<10} {'stopped' if stopped else 'was not running'}")


@main.command()
@click.option(
    "--agents", is_flag=True, help="Show how far the agents of all nodes are instead, by what they say in Kafka."
)
def status(*, agents: bool) -> None:
    """Show which embedded servers run and answer, and how far the agent is; the exit status is 1 unless all run."""
    if agents:
        for line in agents_lines(config.load()):
            click.echo(line)
        return
    all_ready = True
    settings = config.load()
    for server in servers.servers(settings):
        pid = server.pid()
        ready = pid is not None and server.ready()
        all_ready &= ready
        state = "ready" if ready else "not running" if pid is None else "not ready"
        click.echo(f"{server.name:<10} {state:<12} {_ports(server)}  pid {pid or '-'}  log {server.log_file}")
    for line in status_lines(settings):
        click.echo(line)
    sys.exit(0 if all_ready else 1)


@main.command()
def init() -> None:
    """Create the keyspace, tables and topics that do not exist; safe to repeat."""
    _init(config.load())


@main.command()
@click.argument("statements", metavar="STATEMENT...", nargs=-1, required=True)
def cql(*, statements: tuple[str, ...]) -> None:
    """Execute CQL statements in the database, one after the other, and print the rows of answers as JSON lines."""
    with database.connect(config.load()) as session:
        for statement in statements:
            try:
                answer = session.execute(statement)
                for row in answer:
                    click.echo(json.dumps(dict(zip(answer.column_names, row, strict=True)), default=str))
            except database.DRIVER_FAULTS as e:
                raise WritetimeError(f"{statement}: {e}") from None


@main.command()
def serve() -> None:
    """Accept events over HTTP until SIGTERM or Ctrl-C, then drain."""
    ingress.serve(config.load())


@main.command(name="sink")
def run_sink() -> None:
    """Store events from Kafka until SIGTERM or Ctrl-C, then drain and commit."""
    stop = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stop.set())
    outcomes = sink.run(config.load(), stop)
    click.echo(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())) or "no messages")


@main.group(name="dead-letters")
def dead_letters() -> None:
    """Look at messages that could not be stored, and send them once more."""


@dead_letters.command(name="list")
def list_dead_letters() -> None:
    """Print every dead letter: where it came from, why it is one, and the start of its value."""
    settings = config.load()
    topic = settings.ingest.dead_letter_topic
    for letter in deadletters.read(settings, beginning_offsets(settings, topic), end_offsets(settings, topic)):
        value = (letter.value or b"")[:80].decode(errors="replace")
        click.echo(f"{letter.origin}\t{letter.reason}\t{value}")


@dead_letters.command()
def redrive() -> None:
    """Send the dead letters that were not redriven yet back to the events' topic."""
    click.echo(f"{deadletters.redrive(config.load())} redriven")


for command in (
    *(agent, land, publish_segments, retire, scylla_cdc, sstable, commitlog),
    *(snapshot, backfill, view, maintain, rows, publish, rebuild, verify, work, queue_group, replay_group),
):
    main.add_command(command)


def _init(settings: config.Settings) -> None:
    for name in database.apply_schema(settings):
        click.echo(f"schema     applied      {name}")
    for name in ensure_ingest_topics(settings):
        click.echo(f"topic      created      {name}")


def _ports(server: servers.EmbeddedServer) -> str:
    return "ports " + ", ".join(map(str, server.ports.values()))
