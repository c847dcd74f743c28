"""The shell command `writetime` and its subcommands. Each is imported when it is called."""

import ast
import errno
import gc
import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from writetime.core.logs import TextLines, silence_clients

# By name: the module below `writetime.cli`, and the function there.
COMMANDS = {
    "agent": "capture:agent",
    "backfill": "lake:backfill",
    "check": "check:check",
    "commitlog": "storage:commitlog",
    "cql": "servers:cql",
    "cutover": "replication:cutover",
    "dead-letters": "ingest:dead_letters",
    "down": "servers:down",
    "erase": "erase:erase",
    "follow": "follow:follow",
    "forget": "capture:forget",
    "import": "restore:import_",
    "init": "servers:init",
    "land": "capture:land",
    "maintain": "lake:maintain",
    "publish": "row_events:publish",
    "publish-segments": "capture:publish_segments",
    "queue": "workqueue:queue_group",
    "rebuild": "lake:rebuild",
    "replay": "replay:replay_group",
    "replicate": "replication:replicate",
    "restore": "restore:restore",
    "retire": "capture:retire",
    "row-events": "row_events:row_events",
    "scylla-cdc": "scylla_cdc:scylla_cdc",
    "serve": "ingest:serve",
    "sink": "ingest:run_sink",
    "snapshot": "lake:snapshot",
    "sstable": "storage:sstable",
    "status": "servers:status",
    "undo": "undo:undo",
    "up": "servers:up",
    "verify": "verify:verify",
    "view": "view:view",
    "work": "workqueue:work",
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
        module, _, name = COMMANDS[cmd_name].partition(":")
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
            formatter.write_dl([(name, first_sentence(place)) for name, place in sorted(COMMANDS.items())])

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


def first_sentence(place: str) -> str:
    """Return the first sentence of a command's help, by its place. The command is not imported, as importing all takes
    seconds.
    """
    module, _, name = place.partition(":")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_bytes())
    [command] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    words = " ".join((ast.get_docstring(command) or "").split())
    return words.partition(". ")[0].rstrip(".") + "."


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
    from writetime.core import config
    from writetime.core.errors import MissingTable, WritetimeError
    from writetime.core.extras import remedy

    if isinstance(error, MissingTable):
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
        points = ", ".join(config.load().cassandra.contact_points)
        return f"the database at {points} did not answer ({driver_reason(error)}): run the command again"
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
