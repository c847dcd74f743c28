"""Writes a table of the lake as SSTables: all cells and tombstones, with their times, as of an instant.

The folder gets an SSTable per bucket that has changes, `schema.cql`, and `restore.json`, which lists them. That file is
written twice: without the list before the SSTables, so that a run that was killed can be repeated, and with it at the
end.
"""

import json
import posixpath
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyarrow import fs

from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text
from writetime.files.merging import Runner
from writetime.lake.table import LakeTable
from writetime.lake.views import BucketView, views_at
from writetime.schema.describe import to_cql
from writetime.storage.locations import entries, exists, parse_name, read_file, resolve, without_secrets
from writetime.storage.sstable_writer import SSTableWriter

MANIFEST = "restore.json"
# Changes that are written at a time.
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class RestoredSSTable:
    """One SSTable: the name of its Data.db, the number of its changes, and its first and last token."""

    file: str
    changes: int
    first_token: int
    last_token: int


@dataclass(frozen=True)
class _Task:
    view: BucketView
    folder: str
    version: str
    compressor: str | None

    def run(self) -> RestoredSSTable | None:
        """Write the SSTable of a bucket. Return None if the bucket has no changes."""
        state = self.view.state()
        if not state.num_rows:
            return None
        number = str(self.view.bucket + 1)
        with SSTableWriter(
            self.folder, self.view.schema, version=self.version, compressor=self.compressor, sstable_id=number
        ) as writer:
            for batch in state.to_batches(max_chunksize=_BATCH_ROWS):
                writer.write(batch)
        tokens = state["token"]
        data = posixpath.basename(writer.location.path("Data.db"))
        return RestoredSSTable(data, state.num_rows, tokens[0].as_py(), tokens[-1].as_py())


def restore(
    table: LakeTable,
    folder: str,
    as_of: int | None = None,
    *,
    version: str = "nb",
    compressor: str | None = "LZ4Compressor",
    run: Runner = map,
) -> list[RestoredSSTable]:
    """Write a table as SSTables.

    Args:
        table: the table.
        folder: where to: a new or empty folder, or that of a run that did not end; a path or a URL.
        as_of: a time, in microseconds. The SSTables have the writes with write times up to it; None: all writes.
        version: of the SSTables, see `storage.sstable_writer`.
        compressor: the name of a compressor's class, or None.
        run: runs the tasks, one per bucket.

    Raises:
        WritetimeError: the lake cannot show this time, the folder has other files, or the version cannot hold an
            expiry.
    """
    views = views_at(table, as_of)
    schema = views[0].schema if views else table.schema()
    filesystem, path = resolve(folder)
    _prepare(filesystem, path, folder)
    written = {"table": schema.full_name, "as_of": None if as_of is None else instant_text(as_of), "version": version}
    _write(filesystem, posixpath.join(path, MANIFEST), json.dumps({**written, "complete": False}))
    found = list(run(_Task.run, [_Task(view, folder, version, compressor) for view in views]))
    sstables = sorted((each for each in found if each is not None), key=lambda each: each.first_token)
    _write(filesystem, posixpath.join(path, "schema.cql"), to_cql(replace(schema, id=None, dropped=())))
    listed: dict[str, Any] = {**written, "complete": True, "sstables": [asdict(each) for each in sstables]}
    _write(filesystem, posixpath.join(path, MANIFEST), json.dumps(listed, indent=1))
    return sstables


def _prepare(filesystem: fs.FileSystem, path: str, folder: str) -> None:
    """Create the folder, or remove the SSTables of a run that did not end."""
    filesystem.create_dir(path, recursive=True)
    found = entries(filesystem, path)
    manifest = posixpath.join(path, MANIFEST)
    if found and (not exists(filesystem, manifest) or _is_complete(read_file(filesystem, manifest))):
        raise WritetimeError(f"{without_secrets(folder)} has files already: name a folder that is new or empty")
    for file in found:
        if parse_name(filesystem, file) is not None:
            filesystem.delete_file(file)


def _is_complete(manifest: bytes) -> bool:
    try:
        return json.loads(manifest)["complete"]
    except ValueError:
        # The run was killed while it wrote the file.
        return False


def _write(filesystem: fs.FileSystem, path: str, text: str) -> None:
    with filesystem.open_output_stream(path) as file:
        file.write(text.encode())
