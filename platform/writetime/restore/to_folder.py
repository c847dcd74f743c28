"""Writes a table of the lake as SSTables for any node, as of an instant."""

from dataclasses import replace

from writetime.bulk_load.sstables import OF_CASSANDRA, RestoreManifest, write_sstables
from writetime.files.merging import Runner
from writetime.lake.horizon import captured_until
from writetime.lake.table import LakeTable
from writetime.lake.views import views_at
from writetime.schema.describe import to_cql


def restore(
    table: LakeTable,
    folder: str,
    as_of: int | None = None,
    *,
    version: str = OF_CASSANDRA,
    compressor: str | None = "LZ4Compressor",
    run: Runner = map,
) -> RestoreManifest:
    """Write a table as SSTables for any node; return the manifest.

    Args:
        table: the table.
        folder: where to: a new or empty folder, or that of a run that did not end; a path or a URL.
        as_of: a time, in microseconds. The SSTables have the writes with write times up to it; None: all writes.
        version: of the SSTables, see `storage.sstable_writer`.
        compressor: the name of a compressor's class, or None.
        run: runs the tasks, one per bucket.

    Raises:
        WritetimeError: the lake cannot show this time, the folder has other files, another run began to write into it,
            or the version cannot hold an expiry.
    """
    until = captured_until(table.changes.load())
    views = views_at(table, as_of)
    schema = views[0].schema if views else table.schema()
    manifest = RestoreManifest(table.name, as_of, until, version, to_cql(replace(schema, id=None, dropped=())))
    return write_sstables(views, schema, folder, manifest, compressor=compressor, run=run)
