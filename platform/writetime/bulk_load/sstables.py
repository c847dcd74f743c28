"""Writes parts of a table as SSTables: all cells and tombstones, with their times.

The folder gets an SSTable per part that has changes, or per part and node, `schema.cql`, and at the end
`restore.json`, the manifest, which lists them.

A run can be killed at any point, and repeated. `restore.unfinished` is there until the manifest is complete. It has the
number of the run that began last, which is also in the names of this run's SSTables. So runs do not mix their files,
and of two runs at once, one is refused at its end.
"""

import hashlib
import os
import posixpath
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyarrow import fs
from pydantic import TypeAdapter

from writetime.changes.model import KINDS, ROW
from writetime.core.arrow import pc
from writetime.core.errors import WritetimeError, plain_text
from writetime.core.outages import kind_of
from writetime.files.key_ranges import TokenRange
from writetime.files.merging import Runner
from writetime.schema.table import TableSchema
from writetime.storage.locations import entries, exists, parse_name, read_file, resolve, without_secrets
from writetime.storage.sstable_writer import SSTableWriter

# The versions that all nodes of a database read.
OF_CASSANDRA, OF_SCYLLA = "nb", "me"
MANIFEST = "restore.json"
UNFINISHED = "restore.unfinished"
# Changes that are written at a time.
_BATCH_ROWS = 1 << 16
# Cassandra reads the number of an SSTable as a positive `int`.
_MOST_NUMBERS = 1 << 30


@dataclass(frozen=True)
class RestoredSSTable:
    """One SSTable: the path of its Data.db in the folder, the host id of the node that it is for (empty: any), the
    numbers of its changes and of the rows among them, its first and last token, and the CRC32 of Data.db.
    """

    file: str
    node: str
    changes: int
    rows: int
    first_token: int
    last_token: int
    crc32: str


@dataclass(frozen=True)
class TargetNode:
    """A node of the database, and the token ranges (both ends included) of the SSTables that it imports."""

    address: str
    ranges: tuple[TokenRange, ...]


@dataclass(frozen=True)
class Target:
    """The table to import into: its name and id, and its nodes by host id. `merge`: it need not be empty."""

    table: str
    id: str
    merge: bool
    nodes: dict[str, TargetNode]


@dataclass(frozen=True)
class RestoreManifest:
    """What a folder has: the table, the instant (None: all writes) and the time up to which the lake had all writes (0:
    not known), both in microseconds, the version of the SSTables, their schema, the target (None: any), the files, and
    the version of the lake's changes that they were made from.
    """

    table: str
    as_of: int | None
    captured_until: int
    version: str
    schema: str
    target: Target | None = None
    sstables: list[RestoredSSTable] = field(default_factory=list)
    lake_version: int | None = None

    @property
    def changes(self) -> int:
        """The number of changes in all SSTables."""
        return sum(sstable.changes for sstable in self.sstables)

    @property
    def identity(self) -> str:
        """A text that no other manifest has: the numbers of the SSTables are random."""
        return hashlib.sha256(_JSON.dump_json(self)).hexdigest()


_JSON = TypeAdapter(RestoreManifest)


class SortedPart(Protocol):
    """A part of a table, such as a bucket. It may be sent to a task, which computes its merged changes, in order."""

    def state(self) -> pa.Table:
        """Compute all cells and tombstones."""
        ...


@dataclass(frozen=True)
class _Task:
    """Write the SSTables of a part: one, or one per node that imports some of its changes."""

    part: SortedPart
    folder: str
    schema: TableSchema
    version: str
    compressor: str | None
    number: int
    nodes: Mapping[str, TargetNode] | None

    def run(self) -> list[RestoredSSTable]:
        state = self.part.state()
        if self.nodes is None:
            return self._written("", [state])
        tokens = state["token"].to_numpy()
        found = []
        for host, node in self.nodes.items():
            cuts = [(np.searchsorted(tokens, r.first), np.searchsorted(tokens, r.last, "right")) for r in node.ranges]
            found += self._written(host, [state.slice(start, end - start) for start, end in cuts])
        return found

    def _written(self, host: str, parts: Sequence[pa.Table]) -> list[RestoredSSTable]:
        parts = [part for part in parts if part.num_rows]
        if not parts:
            return []
        folder = join(self.folder, host)
        options = {"version": self.version, "compressor": self.compressor, "sstable_id": str(self.number)}
        with faults_of(folder), SSTableWriter(folder, self.schema, **options) as writer:
            for batch in (batch for part in parts for batch in part.to_batches(max_chunksize=_BATCH_ROWS)):
                writer.write(batch)
        name = posixpath.basename(writer.location.path("Data.db"))
        rows = sum(pc.sum(pc.equal(part["kind"], KINDS[ROW])).as_py() for part in parts)
        tokens = parts[0]["token"][0].as_py(), parts[-1]["token"][-1].as_py()
        checksum = writer.location.read("Digest.crc32").decode()
        return [RestoredSSTable(posixpath.join(host, name), host, writer.changes, rows, *tokens, checksum)]


def write_sstables(
    parts: Sequence[SortedPart],
    schema: TableSchema,
    folder: str,
    manifest: RestoreManifest,
    *,
    compressor: str | None = "LZ4Compressor",
    run: Runner = map,
) -> RestoreManifest:
    """Write SSTables of parts with a schema that has the columns of these; return the manifest with the files. If it
    names a target, each of its nodes gets its own folder, named by its host id, with the changes of its token ranges.

    Args:
        parts: of the table; a task each.
        schema: of the parts.
        folder: where to: a new or empty folder, or that of a run that did not end; a path or a URL.
        manifest: what the folder gets.
        compressor: the name of a compressor's class, or None.
        run: runs the tasks.

    Raises:
        WritetimeError: the folder has other files, another run began to write into it, or the version cannot hold an
            expiry.
    """
    with faults_of(folder):
        number = _begin(folder, max(len(parts), 1))
    nodes = None if manifest.target is None else manifest.target.nodes
    # Spark's processes have other working folders.
    place = folder if "://" in folder else os.path.abspath(folder)
    tasks = [_Task(part, place, schema, manifest.version, compressor, n, nodes) for n, part in enumerate(parts, number)]
    found = [sstable for written in run(_Task.run, tasks) for sstable in written]
    manifest = replace(manifest, sstables=sorted(found, key=lambda each: (each.node, each.first_token)))
    with faults_of(folder):
        _end(folder, range(number, number + max(len(parts), 1)), manifest)
    return manifest


def read_manifest(folder: str) -> RestoreManifest | None:
    """Return the manifest of a folder; None if no run has ended there. Raises WritetimeError: it is damaged."""
    with faults_of(folder):
        filesystem, path = resolve(folder)
        manifest = posixpath.join(path, MANIFEST)
        if exists(filesystem, posixpath.join(path, UNFINISHED)) or not exists(filesystem, manifest):
            return None
        content = read_file(filesystem, manifest)
    try:
        return _JSON.validate_json(content)
    except ValueError as e:
        raise WritetimeError(
            f"{without_secrets(join(folder, MANIFEST))} is damaged, so restore into a new folder: {e}"
        ) from None


@contextmanager
def faults_of(folder: str) -> Iterator[None]:
    """Raise an error of a disk or an object store as a WritetimeError that names a folder."""
    try:
        yield
    except OSError as e:
        raise kind_of(e)(
            f"{without_secrets(folder)} cannot be read or written ({plain_text(e)}): free space or grant the right, or "
            "name another folder, and run this again"
        ) from None


def _begin(folder: str, parts: int) -> int:
    """Take the folder for this run, and return the number of its first SSTable."""
    filesystem, path = resolve(folder)
    filesystem.create_dir(path, recursive=True)
    unfinished = posixpath.join(path, UNFINISHED)
    if not exists(filesystem, unfinished) and entries(filesystem, path):
        raise WritetimeError(f"{without_secrets(folder)} has files already: name a folder that is new or empty")
    number = 1 + secrets.randbelow(_MOST_NUMBERS // parts) * parts
    _write(filesystem, unfinished, str(number))
    return number


def _end(folder: str, numbers: range, manifest: RestoreManifest) -> None:
    """Write the manifest, and remove the SSTables of earlier runs."""
    filesystem, path = resolve(folder)
    _require_last(filesystem, path, folder, numbers)
    present = {posixpath.relpath(file, path) for file in _files(filesystem, path)}
    if missing := [each.file for each in manifest.sstables if each.file not in present]:
        raise WritetimeError(
            f"{without_secrets(join(folder, missing[0]))} was written and is not there: name a folder that all "
            "processes of Spark share, such as one of an object store"
        )
    _remove(filesystem, path, numbers, own=False)
    _write(filesystem, posixpath.join(path, "schema.cql"), manifest.schema)
    _write(filesystem, posixpath.join(path, MANIFEST), _JSON.dump_json(manifest, indent=1).decode())
    # A run that began since then removes these SSTables at its end.
    _require_last(filesystem, path, folder, numbers)
    filesystem.delete_file(posixpath.join(path, UNFINISHED))


def _require_last(filesystem: fs.FileSystem, path: str, folder: str, numbers: range) -> None:
    """Remove the SSTables of this run and raise a WritetimeError if another one has begun since, or has ended."""
    unfinished = posixpath.join(path, UNFINISHED)
    if not exists(filesystem, unfinished) or read_file(filesystem, unfinished) != str(numbers[0]).encode():
        _remove(filesystem, path, numbers, own=True)
        raise WritetimeError(
            f"another run has written into {without_secrets(folder)} since this one began: run this again, or name "
            "another folder if that run still writes"
        )


def _remove(filesystem: fs.FileSystem, path: str, numbers: range, *, own: bool) -> None:
    """Remove the SSTables of this run, or of the others."""
    for file in _files(filesystem, path):
        named = parse_name(filesystem, file)
        if named is not None and (named[0].id.isdigit() and int(named[0].id) in numbers) == own:
            filesystem.delete_file(file)


def _files(filesystem: fs.FileSystem, path: str) -> Iterator[str]:
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    return (info.path for info in found if info.type == fs.FileType.File)


def join(folder: str, name: str) -> str:
    """Return the address of a file in a folder, which may be a URL with options."""
    address, question, options = folder.partition("?") if "://" in folder else (folder, "", "")
    return f"{posixpath.join(address, name)}{question}{options}" if name else folder


def write_text(folder: str, name: str, text: str) -> None:
    """Write a file of a folder."""
    with faults_of(folder):
        _write(*resolve(join(folder, name)), text)


def _write(filesystem: fs.FileSystem, path: str, text: str) -> None:
    with filesystem.open_output_stream(path) as file:
        file.write(text.encode())
