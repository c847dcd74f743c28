"""The snapshots that an agent publishes: its node takes them, or an operator took them and named them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from writetime.capture.node_schemas import Node
from writetime.clients.node_snapshots import delete, jmx_port, listed, take
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text
from writetime.lake.backfill import find_snapshots
from writetime.storage.locations import without_secrets


@dataclass(frozen=True)
class TakenSnapshot:
    """The snapshot of a table: its folders or their addresses, and the time at which it was taken (microseconds). If an
    operator took it earlier, `begun_at` is the time of the first of its folders.
    """

    folders: Sequence[str]
    taken_at: int
    begun_at: int | None = None


class Taker(Protocol):
    """Takes and deletes snapshots, in its own thread.

    Raises:
        WritetimeError, OSError: a snapshot cannot be taken or deleted.
    """

    def take(self, tables: Mapping[str, UUID], tag: str) -> Mapping[str, TakenSnapshot]:
        """Take a snapshot of tables in one call, under a tag."""
        ...

    def delete(self, tables: Sequence[str], tag: str) -> None:
        """Delete the snapshots of a tag in the keyspaces of tables."""
        ...


class NodeTaker:
    """Takes snapshots of a Cassandra node, with its own nodetool."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def take(self, tables: Mapping[str, UUID], tag: str) -> Mapping[str, TakenSnapshot]:
        """Flush and snapshot the tables."""
        folders = listed(self._node.setting("data_file_directories") or "")
        found = take(folders, self._jmx_port(), tables, tag)
        taken_at = time.time_ns() // 1000
        return {table: TakenSnapshot([str(path) for path in paths], taken_at) for table, paths in found.items()}

    def delete(self, tables: Sequence[str], tag: str) -> None:
        """Delete them on the node."""
        delete(self._jmx_port(), tables, tag)

    def _jmx_port(self) -> int:
        return jmx_port(self._node.pairs("SELECT name, value FROM system_views.system_properties"))


class NamedTaker:
    """Finds the snapshots that the settings name. ScyllaDB takes none over the network, so an operator took them with
    nodetool on each node.

    `since` returns the time from which a table's log has all writes (microseconds). `begun_at` is the time at which the
    snapshots began, if their files do not have it.
    """

    def __init__(self, folders: Mapping[str, Sequence[str]], since: Callable[[str], int], begun_at: int | None) -> None:
        self._folders = folders
        self._since = since
        self._begun_at = begun_at

    def take(self, tables: Mapping[str, UUID], tag: str) -> Mapping[str, TakenSnapshot]:
        """Find the snapshots.

        Raises:
            WritetimeError: one is missing, is older than the start of the log, or belongs to another table, perhaps an
                earlier one with the same name.
        """
        del tag
        return {table: self._find(table, table_id) for table, table_id in tables.items()}

    def delete(self, tables: Sequence[str], tag: str) -> None:
        """Do nothing, because the snapshots belong to the operator."""

    def _find(self, table: str, table_id: UUID) -> TakenSnapshot:
        folders = self._folders[table]
        found = [find_snapshots([folder]) for folder in folders]
        for shown, files in zip(map(without_secrets, folders), found, strict=True):
            if files.schema.full_name != table:
                raise WritetimeError(f"{shown} is a snapshot of {files.schema.full_name}, not of {table}")
            if files.schema.id not in (None, table_id):
                raise WritetimeError(
                    f"{shown} is a snapshot of an earlier table {table}, with the id {files.schema.id}; the table in "
                    f"the database has the id {table_id}: take a snapshot of it (nodetool snapshot, on each node), and "
                    "name its folders in capture.snapshot_folders"
                )
            begun_at = self._begun_at or files.taken_at
            if begun_at < self._since(table):
                raise WritetimeError(
                    f"{shown} was taken at {instant_text(begun_at)}, by its files or --snapshot-at, and the log of "
                    f"{table} has all writes from {instant_text(self._since(table))} on: neither has the writes in "
                    "between; take another snapshot (nodetool snapshot, on each node), or, if this one was begun "
                    "later, pass that time as --snapshot-at"
                )
        times = [self._begun_at or files.taken_at for files in found]
        return TakenSnapshot(folders, max(times), min(times))
