"""The shell command `writetime` and its subcommands. Each is imported when it is called."""

import errno
import gc
import importlib
import logging
import os
import sys
from typing import Any, NamedTuple

import click

from writetime.core.logs import TextLines, silence_clients


class Listed(NamedTuple):
    """A command as `writetime --help` lists it.

    Attributes:
        place: its module below `writetime.cli`, and its function there.
        help: the first sentence of its own help.
    """

    place: str
    help: str


# The help is listed here because importing all commands takes seconds.
COMMANDS = {
    "agent": Listed("capture:agent", "Publish changes to Kafka until SIGTERM or Ctrl-C."),
    "backfill": Listed("lake:backfill", "Bring snapshots or backups of a table into the lake."),
    "check": Listed(
        "check:check",
        "Check settings, table entries, servers, Java, ports and disks: one line per fault, with the remedy.",
    ),
    "commitlog": Listed("storage:commitlog", "Print the changes in commit log segments, one JSON object per line."),
    "cql": Listed("servers:cql", "Execute CQL statements, and print their rows as JSON lines."),
    "dead-letters": Listed("ingest:dead_letters", "List the messages that could not be stored, or send them again."),
    "down": Listed("servers:down", "Stop the embedded servers; their data stays."),
    "follow": Listed("follow:follow", "Land changes, publish row events and refresh views until SIGTERM or Ctrl-C."),
    "forget": Listed("capture:forget", "Delete all data that the platform has about a table."),
    "init": Listed("servers:init", "Create the keyspace, tables and topics that do not exist; safe to repeat."),
    "land": Listed("capture:land", "Bring captured changes from Kafka into the lake."),
    "maintain": Listed("lake:maintain", "Fold, compact and clean up a table of the lake."),
    "publish": Listed("row_events:publish", "Publish the row events of a table to Kafka."),
    "publish-segments": Listed(
        "capture:publish_segments", "Publish the changes in folders of commit log segments, in Spark tasks."
    ),
    "queue": Listed("workqueue:queue_group", "Inspect work queues, enqueue items, and redrive dead letters."),
    "rebuild": Listed("lake:rebuild", "Rebuild state, compacted view or row events from stored data."),
    "replay": Listed("replay:replay_group", "Publish batches, process them, and read them again."),
    "restore": Listed("restore:restore", "Write a table of the lake as SSTables, which the database can import."),
    "retire": Listed("capture:retire", "Record that a node or a CDC log is no longer a source."),
    "row-events": Listed("row_events:row_events", "Print the row events of a table, or their Avro schema."),
    "scylla-cdc": Listed("scylla_cdc:scylla_cdc", "Print the changes in a ScyllaDB CDC log, one JSON object per line."),
    "serve": Listed("ingest:serve", "Accept events over HTTP until SIGTERM or Ctrl-C, then drain."),
    "sink": Listed("ingest:run_sink", "Store events from Kafka until SIGTERM or Ctrl-C, then drain and commit."),
    "snapshot": Listed("lake:snapshot", "Take a snapshot of a table on this machine's Cassandra node."),
    "sstable": Listed("storage:sstable", "Print the changes in SSTables, one JSON object per line."),
    "status": Listed("servers:status", "Show the status of servers, agent, landing, dead letters and workers."),
    "up": Listed("servers:up", "Start the embedded servers that are not running, then do what `init` does."),
    "verify": Listed("verify:verify", "Compare a table's view with the database."),
    "view": Listed("view:view", "Print the rows of a table as the database would return them for SELECT *."),
    "work": Listed("workqueue:work", "Run a handler for the items of a queue until SIGTERM or Ctrl-C."),
}


# Errors of a path that a user or a setting names; their text has the path.
_OF_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
# Errors of a full or broken disk, and of a limit for files.
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)


class _Group(click.Group):
    """Imports only the command that is called. It shows a `WritetimeError`, an error of a path, a full disk, or that
    the database does not answer, as one line and ends with status 1. Any other exception is a bug and keeps its
    traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].place.partition(":")
        # Python's garbage collector would scan all imported objects again and again: a tenth of a look-up's time.
        gc.disable()
        try:
            return getattr(importlib.import_module(f"writetime.cli.{module}"), name)
        finally:
            gc.freeze()
            gc.enable()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as e:
            raise click.NoSuchCommand(e.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, listed.help) for name, listed in sorted(COMMANDS.items())])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            # Otherwise Python would write the rest when it exits, and report a fault in its own way.
            sys.stdout.flush()
            return result
        except Exception as e:
            if (line := _in_one_line(e)) is None:
                raise
            from writetime.core.errors import without_passwords

            _leave_output()
            raise click.ClickException(without_passwords(line)) from None


def _leave_output() -> None:
    """Discard output that standard output does not accept. Python would try to write it again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _in_one_line(error: Exception) -> str | None:
    """Return the text of an error that is not a bug; None for a bug."""
    if isinstance(error, click.ClickException | click.Abort | click.exceptions.Exit):
        return None
    from writetime.core.errors import MissingTable, WritetimeError
    from writetime.core.extras import remedy

    if isinstance(error, MissingTable):
        from writetime.core import config
        from writetime.landing.missing_tables import message_of

        return message_of(config.load(), error)
    if isinstance(error, WritetimeError):
        return str(error)
    if isinstance(error, _OF_PATHS):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, OSError) and error.errno in _OF_DISKS:
        return f"{error.filename or 'output'}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError):
        return remedy(error)
    if "cassandra" not in sys.modules:
        return None
    from cassandra import Unauthorized

    from writetime.clients.database import driver_reason, is_without_answer

    if isinstance(error, Unauthorized):
        return f"{error}: the role in cassandra.username needs the rights that docs/security.md lists"
    # An invalid request is our bug.
    if is_without_answer(error):
        return f"the database did not answer ({driver_reason(error)}): run the command again"
    return None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="writetime")
@click.pass_context
def main(context: click.Context) -> None:
    """Writetime: a lake that returns the rows that the database would return."""
    handler = logging.StreamHandler()
    handler.setFormatter(TextLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    silence_clients()
    # The command's module is imported by now. If it does not use the settings, they are not read here either.
    if "writetime.core.config" in sys.modules and context.invoked_subcommand != "check":
        _warn_of_refused_tables()


def _warn_of_refused_tables() -> None:
    """Name the table entries that all commands leave out."""
    from writetime.core import config
    from writetime.core.errors import WritetimeError

    try:
        settings = config.load()
    except WritetimeError:
        return  # The command itself reports it.
    if not settings.tables:
        return
    from writetime.lake.followed_tables import read_entries

    if refused := read_entries(settings)[1]:
        reasons = "; ".join(f"{entry.name}: {' '.join(entry.reason.split())}" for entry in refused)
        click.echo(f"Warning: tables are refused, and left out: {reasons}", err=True)
