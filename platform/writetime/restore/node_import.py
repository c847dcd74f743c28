"""Imports the SSTables of a node on the machine of this node, by its own `nodetool import`.

It is repeatable: an import of the same cells changes nothing. A node that has all of its SSTables gets a file
`imported-HOST_ID` in the folder.
"""

import os
import posixpath
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cassandra.cluster import Session
from pyarrow import fs

from writetime.clients.database import DRIVER_FAULTS, driver_reason
from writetime.clients.node_snapshots import listed, local_node
from writetime.core.errors import WritetimeError
from writetime.restore.sstables import Manifest, RestoredSSTable, Target, join
from writetime.runtime.nodetool import nodetool
from writetime.storage.locations import entries, exists, parse_name, resolve, without_secrets

_CHUNK = 1 << 20
_IMPORT_SECONDS = 6 * 3600


def is_imported(folder: str, target: Target, host: str) -> bool:
    """Return whether a node has imported its SSTables into the target."""
    filesystem, path = resolve(join(folder, _mark(host)))
    if not exists(filesystem, path):
        return False
    with filesystem.open_input_stream(path) as file:
        return file.read().decode() == target.id


def is_here(address: str) -> bool:
    """Return whether an address is one of this machine."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def import_node(session: Session, folder: str, manifest: Manifest, host: str) -> int:
    """Import the SSTables that a manifest with a target has for a node of this machine; return how many.

    Raises:
        WritetimeError: the node is down, is not one of this machine, or is not Cassandra; an SSTable is damaged; or
            `nodetool import` fails.
    """
    target = manifest.target
    assert target is not None
    node = target.nodes[host]
    try:
        properties, port = local_node(session, node.address)
    except DRIVER_FAULTS as e:
        raise WritetimeError(
            f"the node {node.address} does not answer: start it, and run this again ({driver_reason(e)})"
        ) from None
    if not any(os.path.isdir(data) for data in listed(properties["data_file_directories"])):
        raise WritetimeError(
            f"the node {node.address} is not on this machine: run `writetime import {without_secrets(folder)}` there"
        )
    own = [sstable for sstable in manifest.sstables if sstable.node == host]
    if own:
        with _copied(folder, host, own, target.table) as copies:
            nodetool(port, "import", *target.table.split(".", 1), str(copies), timeout_seconds=_IMPORT_SECONDS)
            if left := sorted(path.name for path in copies.glob("*-Data.db")):
                raise WritetimeError(f"nodetool import left {left[0]}: see the log of the node {node.address}")
    filesystem, path = resolve(join(folder, _mark(host)))
    with filesystem.open_output_stream(path) as file:
        file.write(target.id.encode())
    return len(own)


def _mark(host: str) -> str:
    return f"imported-{host}"


@contextmanager
def _copied(folder: str, host: str, sstables: Sequence[RestoredSSTable], table: str) -> Iterator[Path]:
    """Yield a folder of this machine with copies of SSTables, which the node moves to its own. Cassandra may conclude
    from the names of the folders above that files are of another table, and leave them.
    """
    filesystem, path = resolve(folder)
    of_node = posixpath.join(path, host)
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    with tempfile.TemporaryDirectory(dir=of_node if is_local else None) as own:
        copies = Path(own, *table.split("."))
        copies.mkdir(parents=True)
        for sstable in sstables:
            data = posixpath.join(path, sstable.file)
            named = parse_name(filesystem, data)
            for file in entries(filesystem, of_node):
                of_file = parse_name(filesystem, file)
                if named is not None and of_file is not None and of_file[0] == named[0]:
                    _copy(filesystem, file, copies / posixpath.basename(file), is_local=is_local)
            _require_intact(copies / posixpath.basename(data), sstable, folder)
        yield copies


def _copy(filesystem: fs.FileSystem, source: str, copy: Path, *, is_local: bool) -> None:
    if is_local:
        # A second name costs no space, and the node may move it away.
        os.link(source, copy)
        return
    with filesystem.open_input_stream(source) as file, copy.open("wb") as own:
        shutil.copyfileobj(file, own, _CHUNK)


def _require_intact(data: Path, sstable: RestoredSSTable, folder: str) -> None:
    checksum = 0
    with data.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    if str(checksum) != sstable.crc32:
        raise WritetimeError(
            f"{without_secrets(join(folder, sstable.file))} has the CRC32 {checksum}, and the manifest has "
            f"{sstable.crc32}: restore into a new folder"
        )
