"""Restores a table of the lake into a table of the database: SSTables by node, their import, and the proof.

Each step is repeatable, and a run continues where the one before it ended:

1. Create the target, or check it. The folder has no manifest yet.
2. Write the SSTables, cut at the token ranges of the target's nodes, and the manifest. In Cassandra, each node imports
   what it has replicas of; in ScyllaDB, each imports a share, and sends it to the replicas.
3. Import them on each node of this machine. On other machines, `writetime import FOLDER` does it.
4. When all nodes have theirs, compare the target with the lake, cell by cell.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cassandra.cluster import Session

from writetime.bulk_load import target as target_table
from writetime.bulk_load.node_import import import_here, target_of
from writetime.bulk_load.ring import nodes_of
from writetime.bulk_load.sstables import (
    OF_CASSANDRA,
    OF_SCYLLA,
    RestoreManifest,
    Target,
    read_manifest,
    write_sstables,
)
from writetime.clients.database import connect
from writetime.clients.scylla_node import is_scylla
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.files.merging import Runner
from writetime.lake.horizon import captured_until
from writetime.lake.table import LakeTable, names_table
from writetime.lake.views import BucketView, time_now, views_at
from writetime.schema.describe import to_cql
from writetime.schema.table import TableSchema
from writetime.storage.locations import without_secrets
from writetime.verify.restored import RestoredReport, verify_restored

log = logging.getLogger(__name__)

_NOT_LOGGED = {
    OF_CASSANDRA: "an import is not in the log of the nodes: let its agents run meanwhile, and bring the rows into the "
    "lake by a snapshot afterwards (docs/capture.md)",
    OF_SCYLLA: "an import is not in its CDC log: bring the rows into the lake by a snapshot afterwards "
    "(docs/scylla-cdc.md#gaps)",
}


@dataclass(frozen=True)
class IntoReport:
    """The manifest, the addresses of the nodes that have not imported their SSTables, and, if there are none, the
    comparison with the lake.
    """

    manifest: RestoreManifest
    remaining: Sequence[str]
    comparison: RestoredReport | None


def restore_into(
    settings: Settings,
    table: LakeTable,
    folder: str,
    into: str,
    as_of: int | None = None,
    *,
    merge: bool = False,
    run: Runner = map,
) -> IntoReport:
    """Restore a table of the lake into a table of Cassandra or ScyllaDB; see the module.

    Args:
        settings: of the database.
        table: the table of the lake.
        folder: for the SSTables: a path or URL that all processes of Spark, and all nodes, can reach.
        into: the table, as keyspace.table. It is created if it is missing.
        as_of: a time, in microseconds: the writes with write times up to it count. Defaults to now.
        merge: whether the table may have rows. Then the newer of two writes to a cell counts.
        run: runs the tasks that write SSTables, one per bucket.

    Raises:
        WritetimeError: the lake cannot show this time, the target cannot be imported into, the folder has other files,
            or an import fails.
    """
    if not names_table(into):
        raise WritetimeError(f"{into!r} names no table: KEYSPACE.TABLE, each of letters, digits and '_'")
    manifest = read_manifest(folder)
    if manifest is None:
        # A run that is repeated has the same instant.
        as_of = time_now() if as_of is None else as_of
        changes = table.changes.load()
        manifest = RestoreManifest(table.name, as_of, captured_until(changes), "", "", lake_version=changes.version)
    else:
        _require_same(manifest, _Wanted(table.name, into, as_of, merge), folder)
    views = _views(table, manifest)
    schema = target_table.named(views[0].schema, into)
    with connect(settings) as session:
        if manifest.target is None:
            version = OF_SCYLLA if is_scylla(session) else OF_CASSANDRA
            target = _prepare(session, schema, version, merge=merge)
            manifest = replace(manifest, version=version, schema=to_cql(schema), target=target)
            manifest = write_sstables(views, schema, folder, manifest, run=run)
        target = target_of(session, manifest, folder)
        remaining = import_here(session, folder, manifest)
        if remaining:
            return IntoReport(manifest, remaining, None)
        target_of(session, manifest, folder)
    try:
        found = verify_restored(settings, views, schema, table.buckets, has_others=target.merge)
    except FileNotFoundError:
        # The lake no longer has the files of the version. The newest one may have more: changes that came late.
        views = views_at(table, manifest.as_of)
        found = verify_restored(settings, views, schema, table.buckets, has_others=target.merge)
    return IntoReport(manifest, [], found)


def _views(table: LakeTable, manifest: RestoreManifest) -> list[BucketView]:
    """Return what the SSTables of a manifest have or get, without changes that reached the lake later."""
    try:
        return views_at(table, manifest.as_of, manifest.lake_version)
    except WritetimeError:
        # The lake may no longer have the version.
        return views_at(table, manifest.as_of)


@dataclass(frozen=True)
class _Wanted:
    """The arguments of a run."""

    table: str
    into: str
    as_of: int | None
    merge: bool


def _require_same(manifest: RestoreManifest, wanted: _Wanted, folder: str) -> None:
    target = manifest.target
    have = target and _Wanted(manifest.table, target.table, manifest.as_of, target.merge)
    if have != replace(wanted, as_of=manifest.as_of if wanted.as_of is None else wanted.as_of):
        into = "any table" if target is None else f"{target.table}{' with --merge' if target.merge else ''}"
        raise WritetimeError(
            f"{without_secrets(folder)} has another restore: {manifest.table} as of {manifest.as_of}, for {into}: name "
            "another folder"
        )


def _prepare(session: Session, schema: TableSchema, version: str, *, merge: bool) -> Target:
    """Create the target, or check that it can be imported into."""
    nodes = nodes_of(session, schema.keyspace, once=version == OF_SCYLLA)
    target_table.create(session, schema)
    if version == OF_SCYLLA:
        is_captured = target_table.has_log(session, schema)
    else:
        views, indexes, row = target_table.system_rows(session, schema)
        target_table.require_importable(schema, views, indexes, row)
        is_captured = bool(row.get("cdc"))
    if is_captured:
        log.warning("%s is captured, and %s", schema.full_name, _NOT_LOGGED[version])
    if merge:
        target_table.require_merge(schema)
    else:
        target_table.require_empty(session, schema.full_name)
    return Target(schema.full_name, target_table.table_id(session, schema.full_name), merge, nodes)
