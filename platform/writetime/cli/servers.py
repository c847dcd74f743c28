"""`writetime up | down | status | init | cql`."""

import json
import sys

import click

from writetime import servers
from writetime.cli.cql_values import json_of
from writetime.cli.screen import LINES, Entries, fit
from writetime.cli.status import agents_lines, status_parts
from writetime.clients import database
from writetime.core import config
from writetime.core.errors import WritetimeError
from writetime.delta.storage import lake_storage
from writetime.ingest.dead_letter_topic import status_lines as ingest_lines
from writetime.ingest.topics import ensure_ingest_topics
from writetime.workqueue.inspect import status_lines as queue_lines


@click.command()
def up() -> None:
    """Start the embedded servers that are not running, then do what `init` does."""
    settings = config.load()
    for server, started in servers.up(settings):
        status = "started" if started else "was running"
        click.echo(f"{server.name:<10} {status:<12} {_ports(server)}  log {server.log_file}")
    _init(settings)


@click.command()
def down() -> None:
    """Stop the embedded servers; their data stays."""
    settings = config.load()
    _require_installation(settings)
    for name, stopped in servers.down(settings):
        click.echo(f"{name:<10} {'stopped' if stopped else 'was not running'}")


@click.command()
@click.option(
    "--agents", is_flag=True, help="Show the progress of the agents of all nodes, as they report it to Kafka."
)
@click.option("--all", "everything", is_flag=True, help="Show all tables, not only the most important ones.")
def status(*, agents: bool, everything: bool) -> None:
    """Show the status of servers, agent, landing, dead letters and workers. The exit status is 1 unless all embedded
    servers run and answer."""
    if agents:
        for line in agents_lines(config.load(), everything=everything):
            click.echo(line)
        return
    all_ready, shown = True, 0
    settings = config.load()
    _require_installation(settings)
    for server in servers.servers(settings):
        pid = server.pid()
        fault = None if pid is None else server.fault()
        all_ready &= pid is not None and fault is None
        status = "not running" if pid is None else "not ready" if fault else "ready"
        line = f"{server.name:<10} {status:<12} {_ports(server)}  pid {pid or '-'}  log {server.log_file}"
        click.echo(f"{line}  ({fault})" if fault else line)
        shown += 1
    for server in servers.left(settings):
        click.echo(f"{server.folder.name:<10} runs, but is not in embedded.servers: `writetime down` stops it")
        shown += 1
    queues = Entries([[line] for line in queue_lines(settings)], "faults of queues")
    parts = [*status_parts(settings, everything=everything), *ingest_lines(settings), queues]
    for line in fit(parts, None if everything else LINES - shown):
        click.echo(line)
    sys.exit(0 if all_ready else 1)


@click.command()
def init() -> None:
    """Create the keyspace, tables and topics that do not exist; safe to repeat."""
    _init(config.load())


@click.command()
@click.argument("statements", metavar="STATEMENT...", nargs=-1, required=True)
def cql(*, statements: tuple[str, ...]) -> None:
    """Execute CQL statements, and print their rows as JSON lines."""
    with database.connect(config.load()) as session:
        for statement in statements:
            try:
                answer = session.execute(statement)
                for row in answer:
                    values = zip(answer.column_names, map(json_of, row), strict=True)
                    line = json.dumps(dict(values), allow_nan=False, ensure_ascii=False)
                    # As `view` prints it, in every locale.
                    click.echo(line.encode(errors="backslashreplace"))
            except database.DRIVER_FAULTS as e:
                raise WritetimeError(f"{statement}: {e}") from None


def _require_installation(settings: config.Settings) -> None:
    """Reject a folder that has neither settings nor embedded servers, which may be running in another folder. Raises
    WritetimeError: with the places that were searched.
    """
    path, home = config.config_path(), settings.embedded.home
    if settings.embedded.servers and not path.is_file() and not home.is_dir():
        raise WritetimeError(
            f"there are no settings at {path.absolute()}, and no servers in {home.absolute()}: go to the folder with "
            "writetime.toml, or name this file in WRITETIME_CONFIG"
        )


def _init(settings: config.Settings) -> None:
    # No lake is made here, and a name that engines cannot read is refused before there is data.
    lake_storage(settings)
    for name in database.apply_schema(settings):
        click.echo(f"schema     applied      {name}")
    for name in ensure_ingest_topics(settings):
        click.echo(f"topic      created      {name}")


def _ports(server: servers.EmbeddedServer) -> str:
    return "ports " + ", ".join(map(str, server.ports.values()))
