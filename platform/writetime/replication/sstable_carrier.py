"""Carries merged changes to a cluster as SSTables, which its nodes import.

They hold what CQL cannot write: the places of the elements of a list in Cassandra, and the parts of a counter. They are
also the fastest way for a whole table. An import may be repeated, and adds nothing then: the newer of two writes to a
cell counts, and the later of two states of a part of a counter.

Each transfer has its own folder, `<keyspace>.<table>/<name>` of the cluster's folder. It is removed when all nodes have
imported it. A transfer that was not finished is continued, if it is wanted by the same name, and else removed.
"""

import posixpath
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa
from cassandra.cluster import Session
from pyarrow import fs

from writetime.bulk_load.node_import import import_here
from writetime.bulk_load.ring import nodes_of
from writetime.bulk_load.sstables import (
    MANIFEST,
    OF_CASSANDRA,
    OF_SCYLLA,
    RestoreManifest,
    SortedPart,
    Target,
    faults_of,
    join,
    read_manifest,
    write_sstables,
)
from writetime.bulk_load.target import require_importable, system_rows
from writetime.changes.model import field_name
from writetime.core.errors import Transient, WritetimeError
from writetime.delta.bucketed_table import Conflict
from writetime.replication.target_table import is_list
from writetime.schema.describe import to_cql
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native
from writetime.storage.locations import resolve, without_secrets

_PAUSE_SECONDS = 0.5
# How long a transfer waits for nodes on other machines, before it is written again with the changes that came since.
_WAIT_SECONDS = 600.0


def cql_fault(column: Column, *, to_scylla: bool) -> str | None:
    """Return why CQL cannot write a column exactly; None if it can."""
    if column.type == Native("counter"):
        return "is a counter, to which CQL can only add"
    if is_list(column) and not to_scylla:
        return "is a list, and Cassandra's CQL cannot write the places of its elements"
    return None


def require_replicable(schema: TableSchema, cluster: str, *, to_scylla: bool) -> None:
    """Raise a WritetimeError if the table has columns that need SSTables."""
    for column in schema.static + schema.regular:
        if (fault := cql_fault(column, to_scylla=to_scylla)) is not None:
            raise WritetimeError(
                f"{schema.full_name} cannot be replicated to {cluster} by CQL alone: its column {column.name} {fault}. "
                f"Name a folder that all nodes can reach in [clusters.{cluster}] sstables, or leave the table out"
            )


class SSTableCarrier:
    """Carries the changes of one table."""

    def __init__(self, session: Session, folder: str, schema: TableSchema, target_id: str, *, to_scylla: bool) -> None:
        """Carry changes with a schema to the table of its name, whose id in the cluster is given, through a folder that
        all nodes can reach.
        """
        self._session, self._schema, self._target_id = session, schema, target_id
        self._root, self._folder = folder, join(folder, schema.full_name)
        self._version = OF_SCYLLA if to_scylla else OF_CASSANDRA
        columns = schema.static + schema.regular
        self._needing = [field_name(each) for each in columns if cql_fault(each, to_scylla=to_scylla)]

    def is_needed_by(self, merged: pa.Table) -> bool:
        """Return whether merged changes have something that CQL cannot write."""
        return any(merged[name].null_count < len(merged) for name in self._needing)

    def carry(self, parts: Sequence[SortedPart], name: str, proceed: Callable[[], None]) -> int:
        """Write the SSTables of a transfer and wait until all nodes have imported them; return the number of changes.
        `proceed` is called meanwhile, and may raise.

        Raises:
            Conflict: another program has removed the transfer.
            Transient: a node has not imported its SSTables yet.
            WritetimeError: the SSTables cannot be written, or a node cannot import them, as into a table of Cassandra
                with an index.
        """
        if self._version == OF_CASSANDRA:
            require_importable(self._schema, *system_rows(self._session, self._schema))
        self._remove_others(name)
        folder = join(self._folder, name)
        nodes = nodes_of(self._session, self._schema.keyspace, once=self._version == OF_SCYLLA)
        target = Target(self._schema.full_name, self._target_id, merge=True, nodes=nodes)
        manifest = read_manifest(folder)
        if manifest is None or manifest.target != target:
            # Of a run that was killed, or for other nodes.
            self._remove(name)
            wanted = RestoreManifest(target.table, None, 0, self._version, to_cql(self._schema), target)
            manifest = write_sstables(parts, self._schema, folder, wanted)
        self._import(folder, manifest, proceed)
        self._remove(name)
        return manifest.changes

    def _import(self, folder: str, manifest: RestoreManifest, proceed: Callable[[], None]) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while remaining := import_here(self._session, folder, manifest):
            proceed()
            if read_manifest(folder) != manifest:
                raise Conflict(f"another program has removed {without_secrets(folder)}")
            if time.monotonic() > deadline:
                # The manifest stays, so the nodes can go on.
                raise Transient(
                    f"{', '.join(remaining)} have not imported {without_secrets(folder)}: let `writetime import "
                    f"--follow {without_secrets(self._root)}` run on each of these nodes"
                )
            time.sleep(_PAUSE_SECONDS)
        if read_manifest(folder) != manifest:
            raise Conflict(f"another program has removed {without_secrets(folder)}")

    def _remove_others(self, name: str) -> None:
        with faults_of(self._folder):
            filesystem, path = resolve(self._folder)
            found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        for info in found:
            if info.base_name != name:
                self._remove(info.base_name)

    def _remove(self, name: str) -> None:
        folder = join(self._folder, name)
        with faults_of(folder):
            filesystem, path = resolve(folder)
            # Without the manifest, what a run that is killed here leaves does not count.
            with suppress(FileNotFoundError):
                filesystem.delete_file(posixpath.join(path, MANIFEST))
            with suppress(FileNotFoundError):
                filesystem.delete_dir(path)
