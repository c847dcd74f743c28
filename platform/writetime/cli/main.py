"""The shell command `writetime`: its commands for the servers, and where all others are."""

import importlib
import json
import logging
import sys
from typing import Any

import click
from cassandra import RequestValidationException

from writetime import servers
from writetime.clients import database
from writetime.core import config
from writetime.core.errors import WritetimeError
from writetime.ingest.topics import ensure_ingest_topics

# Each where it is, below `writetime.cli`: all of them together take seconds to import, one does not.
_COMMANDS = {
    "agent": "capture:agent",
    "backfill": "lake:backfill",
    "commitlog": "storage:commitlog",
    "dead-letters": "ingest:dead_letters",
    "forget": "capture:forget",
    "land": "capture:land",
    "maintain": "lake:maintain",
    "publish": "row_events:publish",
    "publish-segments": "capture:publish_segments",
    "queue": "workqueue:queue_group",
    "rebuild": "row_events:rebuild",
    "replay": "replay:replay_group",
    "retire": "capture:retire",
    "rows": "row_events:rows",
    "scylla-cdc": "scylla_cdc:scylla_cdc",
    "serve": "ingest:serve",
    "sink": "ingest:run_sink",
    "snapshot": "lake:snapshot",
    "sstable": "storage:sstable",
    "verify": "verify:verify",
    "view": "lake:view",
    "work": "workqueue:work",
}


class _Group(click.Group):
    """Shows a `WritetimeError`, or that the database does not answer, as one line and ends with status 1. Anything else
    is a bug and keeps its traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, name = _COMMANDS[cmd_name].partition(":")
        return getattr(importlib.import_module(f"writetime.cli.{module}"), name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except WritetimeError as e:
            raise click.ClickException(str(e)) from None
        except database.DRIVER_FAULTS as e:
            if isinstance(e, RequestValidationException):
                # A statement of ours is wrong.
                raise
            raise click.ClickException(
                f"the database did not answer ({database.driver_reason(e)}): run the command again"
            ) from None


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
@click.option("--all", "everything", is_flag=True, help="Show all tables, and not those only that matter most.")
def status(*, agents: bool, everything: bool) -> None:
    """Show which embedded servers run and answer, how far the agent is, which tables do not land, how many dead letters
    there are, and faults of workers; the exit status is 1 unless all servers run."""
    from writetime.cli.status import agents_lines, status_lines
    from writetime.ingest.deadletters import status_lines as ingest_lines
    from writetime.workqueue.inspect import status_lines as queue_lines

    if agents:
        for line in agents_lines(config.load(), everything=everything):
            click.echo(line)
        return
    all_ready = True
    settings = config.load()
    for server in servers.servers(settings):
        pid = server.pid()
        fault = None if pid is None else server.fault()
        all_ready &= pid is not None and fault is None
        state = "not running" if pid is None else "not ready" if fault else "ready"
        line = f"{server.name:<10} {state:<12} {_ports(server)}  pid {pid or '-'}  log {server.log_file}"
        click.echo(f"{line}  ({fault})" if fault else line)
    for line in [*status_lines(settings, everything=everything), *ingest_lines(settings), *queue_lines(settings)]:
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


def _init(settings: config.Settings) -> None:
    for name in database.apply_schema(settings):
        click.echo(f"schema     applied      {name}")
    for name in ensure_ingest_topics(settings):
        click.echo(f"topic      created      {name}")


def _ports(server: servers.EmbeddedServer) -> str:
    return "ports " + ", ".join(map(str, server.ports.values()))
