"""Takes a snapshot of a table on the Cassandra node of this machine, and finds its files.

CQL has no statement for snapshots, so this runs Cassandra's own `nodetool` over JMX. The node reports its JMX port and
its data folders in its virtual tables.
"""

import ast
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

from cassandra import InvalidRequest
from cassandra.cluster import Session

from writetime.clients.database import connect, node_of
from writetime.core.config import Settings
from writetime.core.errors import MissingTable, WritetimeError
from writetime.core.waiting import wait_until
from writetime.runtime.nodetool import nodetool

# Cassandra uses the tag as the name of a folder: `..` would be the table's own folder.
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_PAUSE_SECONDS = 0.05
_JMX_PORTS = ("cassandra.jmx.local.port", "cassandra.jmx.remote.port")


def new_tag() -> str:
    """Return a name for a snapshot: the time, and a random part, because two may be taken within a second."""
    return f"writetime-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}"


def take_snapshot(settings: Settings, table: str, tag: str) -> list[Path]:
    """Flush `keyspace.table` and snapshot it under a tag; return the folders of the snapshot, one per data folder.
    Raises MissingTable: there is no such table; WritetimeError: the tag cannot be a folder, the node is not Cassandra
    or has no JMX port, or nodetool fails.
    """
    _check_tag(tag)
    keyspace, _, name = table.partition(".")
    with connect(settings) as session:
        query = "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
        found = session.execute(query, [keyspace, name]).one()
        if found is None:
            raise MissingTable(f"the database has no table {table}: name it as KEYSPACE.TABLE", table)
        properties, port = local_node(session, settings.capture.node)
    return take(listed(properties["data_file_directories"]), port, {table: found.id}, tag)[table]


def take(
    data_folders: list[str], port: int, tables: Mapping[str, UUID], tag: str, patience: float = 2.0
) -> dict[str, list[Path]]:
    """Do the same as `take_snapshot`, for some tables at once, on a node with known data folders and JMX port. If this
    fails, the node keeps no part of the snapshot. It waits for `patience` seconds for the folders of new tables. Raises
    WritetimeError: nodetool fails, or a snapshot is not at the expected place.
    """
    keyspaces = {table.partition(".")[0] for table in tables}
    folders = {table: _folders(data_folders, table, table_id) for table, table_id in tables.items()}
    # The schema of a new table is in the database a moment before its folder is on the disk.
    wait_until(lambda: all(any(map(os.path.exists, f)) for f in folders.values()), patience, _PAUSE_SECONDS)
    for table, of_table in folders.items():
        _present(of_table, table, tag)
    used = any(any(Path(d, k).glob(f"*/snapshots/{tag}")) for d in data_folders for k in keyspaces)
    try:
        nodetool(port, "snapshot", "-t", tag, "-kt", ",".join(tables))
        return {
            table: _present([folder / "snapshots" / tag for folder in of_table], table, tag)
            for table, of_table in folders.items()
        }
    except BaseException as e:
        # A partial snapshot would keep its files on the node's disk. An earlier snapshot with this tag is not ours.
        if not used and "already exists" not in str(e):
            with suppress(Exception):
                delete(port, tables, tag)
        raise


def _folders(data_folders: list[str], table: str, table_id: UUID) -> list[Path]:
    keyspace, _, name = table.partition(".")
    return [Path(folder) / keyspace / f"{name}-{table_id.hex}" for folder in data_folders]


def _present(folders: Sequence[Path], table: str, tag: str) -> list[Path]:
    """Return the folders that exist. A folder that cannot be read is an error, because its rows would be missing."""
    found: list[Path] = []
    for folder in folders:
        try:
            is_there = stat.S_ISDIR(folder.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            is_there = False
        if not is_there or not os.access(folder, os.R_OK | os.X_OK):
            raise _unreadable(table, tag, f"{folder} is not readable")
        found.append(folder)
    if not found:
        raise _unreadable(table, tag, f"{folders[0]} does not exist")
    return found


def _unreadable(table: str, tag: str, why: str) -> WritetimeError:
    return WritetimeError(
        f"the snapshot {tag} of {table} cannot be read: {why}; `writetime snapshot` must run on the node's own "
        "machine, as a user who may read its data folders"
    )


def clear_snapshot(settings: Settings, table: str, tag: str) -> None:
    """Delete a snapshot. Raises WritetimeError: the tag cannot be a folder, or nodetool fails."""
    _check_tag(tag)
    with connect(settings) as session:
        _, port = local_node(session, settings.capture.node)
    delete(port, [table], tag)


def _check_tag(tag: str) -> None:
    if not _TAG.fullmatch(tag):
        raise WritetimeError(
            f"a snapshot cannot be named {tag!r}: use 1 to 200 letters, digits, '_', '-' and '.', and begin with a "
            "letter, a digit or '_'"
        )


def delete(port: int, tables: Iterable[str], tag: str) -> None:
    """Delete all snapshots with a tag in the keyspaces of some tables, on a node with a known JMX port."""
    nodetool(port, "clearsnapshot", "-t", tag, "--", *sorted({table.partition(".")[0] for table in tables}))


def local_node(session: Session, address: str | None = None) -> tuple[Mapping[str, str], int]:
    """Return the current settings of the Cassandra node of this machine, by name, and its JMX port. Its
    address is needed if the cluster has other nodes. Raises WritetimeError: the node is not named, or is not Cassandra,
    or has no JMX port.
    """
    node = node_of(session, address)
    try:
        settings = dict(iter(session.execute("SELECT name, value FROM system_views.settings", host=node)))
        properties = dict(iter(session.execute("SELECT name, value FROM system_views.system_properties", host=node)))
    except InvalidRequest:
        raise WritetimeError(
            "the database has no virtual tables of Cassandra 4 or later: take the snapshot with the node's own "
            "nodetool, and give its folder to `writetime backfill`"
        ) from None
    return settings, jmx_port(properties)


def jmx_port(properties: Mapping[str, str | None]) -> int:
    """Return the JMX port in a node's system properties. Raises WritetimeError: there is none."""
    for name in _JMX_PORTS:
        if port := properties.get(name):
            return int(port)
    raise WritetimeError(f"the node reports no JMX port: start it with -D{_JMX_PORTS[0]}=7199 (cassandra-env.sh does)")


def listed(text: str) -> list[str]:
    """Parse a list of the virtual table: `[a, b]`, without quotes."""
    try:
        return [str(item) for item in ast.literal_eval(text)]
    except (ValueError, SyntaxError):
        return [item.strip() for item in text.strip("[]").split(",")]
