"""Restores a table of the lake into a table of the database: SSTables by node, their import, and the proof.

Each step is repeatable, and a run continues where the one before it ended:

1. Create the target, or check it. The folder has no manifest yet.
2. Write the SSTables, cut at the token ranges of the target's nodes, and the manifest.
3. Import them on each node of this machine. On other machines, `writetime import FOLDER` does it.
4. When all nodes have theirs, compare the target with the lake, cell by cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cassandra.cluster import Session

from writetime.clients.database import connect, node_of
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.files.merging import Runner
from writetime.lake.horizon import captured_until
from writetime.lake.table import LakeTable, names_table
from writetime.lake.views import time_now, views_at
from writetime.restore import target as target_table
from writetime.restore.node_import import import_node, is_here, is_imported
from writetime.restore.ring import nodes_of
from writetime.restore.sstables import Manifest, Target, read_manifest, write_sstables
from writetime.schema.describe import to_cql
from writetime.schema.table import TableSchema
from writetime.storage.locations import without_secrets
from writetime.verify.restored import RestoredReport, verify_restored


@dataclass(frozen=True)
class IntoReport:
    """The manifest, the addresses of the nodes that have not imported their SSTables, and, if there are none, the
    comparison with the lake.
    """

    manifest: Manifest
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
    """Restore a table of the lake into a table of Cassandra; see the module.

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
    if manifest is not None:
        _require_same(manifest, table, into, as_of, folder)
        as_of = manifest.as_of
    elif as_of is None:
        # A run that is repeated has the same instant.
        as_of = time_now()
    views = views_at(table, as_of)
    schema = target_table.named(views[0].schema if views else table.schema(), into)
    with connect(settings) as session:
        if manifest is None:
            until, target = captured_until(table.changes.load()), _prepare(session, schema, merge=merge)
            manifest = Manifest(table.name, as_of, until, "nb", to_cql(schema), target)
            manifest = write_sstables(views, schema, folder, manifest, run=run)
        target = _target(session, manifest, schema, folder)
        remaining = _import(session, manifest, target, folder)
    if remaining:
        return IntoReport(manifest, remaining, None)
    return IntoReport(manifest, [], verify_restored(settings, views, schema, table.buckets, has_others=target.merge))


def import_here(settings: Settings, folder: str) -> tuple[Manifest, int]:
    """Import the SSTables of a folder that are for the node of this machine, which `capture.node` names if the cluster
    has several. Return the manifest, and the number of SSTables. The errors are those of `import_node`.
    """
    manifest = read_manifest(folder)
    if manifest is None or manifest.target is None:
        raise WritetimeError(
            f"{without_secrets(folder)} has no complete restore for a target: run `writetime restore KS.TABLE --to "
            f"{without_secrets(folder)} --into KS.OTHER` until it ends"
        )
    with connect(settings) as session:
        host = str(node_of(session, settings.capture.node).host_id)
        if host not in manifest.target.nodes:
            raise WritetimeError(
                f"{without_secrets(folder)} has no SSTables for the node {host}: it joined the cluster later, or has "
                "no replicas of the keyspace"
            )
        return manifest, import_node(session, folder, manifest, host)


def _require_same(manifest: Manifest, table: LakeTable, into: str, as_of: int | None, folder: str) -> None:
    have = manifest.table, manifest.target and manifest.target.table, manifest.as_of
    want = table.name, into, manifest.as_of if as_of is None else as_of
    if have != want:
        raise WritetimeError(
            f"{without_secrets(folder)} has another restore: {have[0]} as of {have[2]}, for {have[1] or 'any table'}: "
            "name another folder"
        )


def _prepare(session: Session, schema: TableSchema, *, merge: bool) -> Target:
    """Create the target, or check that it can be imported into."""
    nodes = nodes_of(session, schema.keyspace)
    target_table.create(session, schema)
    target_table.require_importable(schema, *target_table.system_rows(session, schema))
    if merge:
        target_table.require_merge(schema)
    else:
        target_table.require_empty(session, schema)
    return Target(schema.full_name, target_table.table_id(session, schema), merge, nodes)


def _target(session: Session, manifest: Manifest, schema: TableSchema, folder: str) -> Target:
    """Return the target, if it is still the table, with the nodes, that the SSTables are for."""
    target = manifest.target
    assert target is not None
    now = replace(target, id=target_table.table_id(session, schema), nodes=nodes_of(session, schema.keyspace))
    if now != target:
        what = "was dropped and created again" if now.id != target.id else "has other nodes or token ranges"
        raise WritetimeError(f"{target.table} {what} since {without_secrets(folder)} was written: name a new folder")
    return target


def _import(session: Session, manifest: Manifest, target: Target, folder: str) -> list[str]:
    """Import on the nodes of this machine; return the addresses of the others that have not imported yet. A node that
    fails does not stop the others.
    """
    waiting = {host: node for host, node in target.nodes.items() if not is_imported(folder, target, host)}
    here = [host for host, node in waiting.items() if is_here(node.address)]
    faults = []
    for host in here:
        try:
            import_node(session, folder, manifest, host)
        except WritetimeError as e:
            faults.append(str(e))
    if faults:
        raise WritetimeError("; ".join(faults))
    return [node.address for host, node in waiting.items() if host not in here]
