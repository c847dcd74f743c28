"""Carries merged changes to a cluster as SSTables, which its nodes import.

They hold what CQL cannot write: the places of the elements of a list in Cassandra, and the parts of a counter. They are
also the fastest way for a whole table. An import may be repeated, and adds nothing then: the newer of two writes to a
cell counts, and the later of two states of a part of a counter.

Each transfer is a new folder, `<keyspace>.<table>/<name>` of the cluster's folder. The position of the replication
names it, so any program can continue it. It is removed when all nodes have imported it.
"""

import posixpath
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
from cassandra.cluster import Session
from pyarrow import fs

from writetime.bulk_load.node_import import import_here, target_of
from writetime.bulk_load.ring import nodes_of
from writetime.bulk_load.sstables import (
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
from writetime.replication.target_table import is_list
from writetime.schema.describe import to_cql
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native
from writetime.storage.locations import resolve, without_secrets

# Folders of programs that were killed before the position named them.
_LEFT_SECONDS = 24 * 3600


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
        self._is_of_counters = any(column.type == Native("counter") for column in columns)

    def is_needed_by(self, merged: pa.Table) -> bool:
        """Return whether merged changes have something that CQL cannot write. It cannot delete from a table of counters
        at a time of the past, either.
        """
        if self._is_of_counters:
            return merged.num_rows > 0
        return any(merged[name].null_count < len(merged) for name in self._needing)

    def write(self, parts: Sequence[SortedPart]) -> tuple[str, int]:
        """Write the SSTables of a transfer; return its name, and the number of changes.

        Raises:
            Transient: the ring of the cluster cannot be read, or the folder cannot be written now.
            WritetimeError: the SSTables cannot be written, or the table cannot be imported into, such as one of
                Cassandra with an index.
        """
        self._require_importable()
        name = f"{time.time_ns() // 1000}-{secrets.token_hex(4)}"
        nodes = nodes_of(self._session, self._schema.keyspace, once=self._version == OF_SCYLLA)
        target = Target(self._schema.full_name, self._target_id, merge=True, nodes=nodes)
        manifest = RestoreManifest(target.table, None, 0, self._version, to_cql(self._schema), target)
        return name, write_sstables(parts, self._schema, join(self._folder, name), manifest).changes

    def is_imported(self, name: str, *, until: float) -> bool:
        """Let the nodes of this machine import a transfer. Return whether all nodes have imported it. After a time
        (seconds since 1970), the others are an error.

        Raises:
            Transient: a node of this machine does not answer, or the ring cannot be read now.
            TransferLost: the transfer has to be written again.
            WritetimeError: a node cannot import, or has not done so in time.
        """
        folder = join(self._folder, name)
        manifest = read_manifest(folder)
        if manifest is None:
            raise TransferLost(f"{without_secrets(folder)} was removed")
        self._require_target(manifest, folder)
        if remaining := import_here(self._session, folder, manifest):
            if time.time() > until:
                raise WritetimeError(
                    f"{', '.join(remaining)} have not imported {without_secrets(folder)}: let `writetime import "
                    f"--follow {without_secrets(self._root)}` run on each of these nodes"
                )
            return False
        # Both may have changed meanwhile, and an import into them does not count then.
        self._require_target(manifest, folder)
        self._require_importable()
        return True

    def remove(self, name: str) -> None:
        """Remove a transfer, and those that programs left a day ago, before a position named them."""
        with faults_of(self._folder):
            filesystem, path = resolve(self._folder)
            found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
            left = f"{int(time.time() - _LEFT_SECONDS) * 1_000_000}-"
            for each in (info.base_name for info in found):
                if each == name or each < left:
                    with suppress(FileNotFoundError):
                        filesystem.delete_dir(posixpath.join(path, each))

    def _require_target(self, manifest: RestoreManifest, folder: str) -> None:
        try:
            target_of(self._session, manifest, folder)
        except Transient:
            raise
        except WritetimeError as e:
            raise TransferLost(str(e)) from None

    def _require_importable(self) -> None:
        if self._version == OF_CASSANDRA:
            require_importable(self._schema, *system_rows(self._session, self._schema))


class TransferLost(WritetimeError):
    """A transfer is no longer there, or the nodes or the table are others than those that it was written for."""
