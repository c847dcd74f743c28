"""Imports the SSTables of a node on the machine of this node, by its own `nodetool import`.

It is repeatable: an import of the same cells changes nothing. A node that begins gets a file `importing-HOST_ID` in the
folder, and one that has all of its SSTables a file `imported-HOST_ID`. Unless the import is a merge, the table has to
be empty when the first node begins.
"""

import errno
import os
import posixpath
import shutil
import socket
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cassandra.cluster import Session
from pyarrow import fs

from writetime.clients.database import DRIVER_FAULTS, driver_reason, is_without_answer
from writetime.clients.node_snapshots import listed, local_node
from writetime.core.errors import Transient, WritetimeError, plain_text
from writetime.core.outages import kind_of
from writetime.restore.sstables import RestoredSSTable, RestoreManifest, Target, faults_of, join, write_text
from writetime.restore.target import require_empty
from writetime.runtime.nodetool import nodetool
from writetime.storage.locations import entries, exists, parse_name, read_file, resolve, without_secrets

_IMPORTING, _IMPORTED = "importing-", "imported-"
_CHUNK = 1 << 20
# The times of copies, in seconds since 1970. An agent finds an import by a file that is new in the folder of the table,
# and older than the last look there.
_OLD = 0, 0
_IMPORT_SECONDS = 6 * 3600
_COPIED_BYTES = 8 << 30


def is_imported(folder: str, target: Target, host: str) -> bool:
    """Return whether a node has imported its SSTables into the target."""
    with faults_of(folder):
        filesystem, path = resolve(join(folder, _IMPORTED + host))
        return exists(filesystem, path) and read_file(filesystem, path).decode() == target.id


def is_here(address: str) -> bool:
    """Return whether an address is one of this machine."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def import_node(
    session: Session, folder: str, manifest: RestoreManifest, host: str, *, copied_bytes: int = _COPIED_BYTES
) -> int:
    """Import the SSTables that a manifest with a target has for a node of this machine; return how many. About so many
    bytes of an object store are copied at a time.

    Raises:
        WritetimeError: the node is down, is not one of this machine, or is not Cassandra; an SSTable is damaged; or
            `nodetool import` fails.
    """
    target = manifest.target
    assert target is not None
    node = target.nodes[host]
    port = _port_of(session, node.address, folder)
    _begin(session, folder, target, host)
    own = [sstable for sstable in manifest.sstables if sstable.node == host]
    for some in _parts(folder, own, copied_bytes):
        with _copied(folder, host, some, target.table) as copies:
            nodetool(port, "import", *target.table.split(".", 1), str(copies), timeout_seconds=_IMPORT_SECONDS)
            if left := sorted(path.name for path in copies.glob("*-Data.db")):
                raise WritetimeError(f"nodetool import left {left[0]}: see the log of the node {node.address}")
    write_text(folder, _IMPORTED + host, target.id)
    return len(own)


def _port_of(session: Session, address: str, folder: str) -> int:
    """Return the JMX port of a node of this machine."""
    try:
        properties, port = local_node(session, address)
    except DRIVER_FAULTS as e:
        reason = driver_reason(e)
        if not is_without_answer(e):
            raise WritetimeError(
                f"the settings of the node {address} cannot be read ({reason}): grant the right that is missing, see "
                "docs/security.md, and run this again"
            ) from None
        raise Transient(f"the node {address} does not answer: start it, and run this again ({reason})") from None
    if not any(os.path.isdir(data) for data in listed(properties["data_file_directories"])):
        raise WritetimeError(
            f"the node {address} is not on this machine: run `writetime import {without_secrets(folder)}` there"
        )
    return port


def _begin(session: Session, folder: str, target: Target, host: str) -> None:
    """Record that a node begins. If it is the first one, others may have written to the table since the SSTables were
    written, or have imported into it.
    """
    with faults_of(folder):
        names = [posixpath.basename(entry) for entry in entries(*resolve(folder))]
    if not target.merge and not any(name.startswith((_IMPORTING, _IMPORTED)) for name in names):
        require_empty(session, target.table)
    write_text(folder, _IMPORTING + host, target.id)


def _parts(folder: str, sstables: Sequence[RestoredSSTable], size: int) -> Iterator[list[RestoredSSTable]]:
    """Yield SSTables that are imported at once: of an object store, about so many bytes, and of a disk all."""
    filesystem, path = resolve(folder)
    part: list[RestoredSSTable] = []
    held = 0
    for sstable in sstables:
        part.append(sstable)
        if not isinstance(filesystem, fs.LocalFileSystem):
            with faults_of(folder):
                held += filesystem.get_file_info(posixpath.join(path, sstable.file)).size or 0
        if held >= size:
            yield part
            part, held = [], 0
    if part:
        yield part


@contextmanager
def _copied(folder: str, host: str, sstables: Sequence[RestoredSSTable], table: str) -> Iterator[Path]:
    """Yield a folder of this machine with copies of SSTables, which the node moves to its own. Cassandra may conclude
    from the names of the folders above that files are of another table, and leave them.
    """
    filesystem, path = resolve(folder)
    of_node = posixpath.join(path, host)
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    with faults_of(folder):
        files = _files_by_id(filesystem, of_node)
        made = tempfile.TemporaryDirectory(dir=of_node if is_local else None)
    with made as own:
        # The node has another working folder.
        copies = Path(own, *table.split(".")).absolute()
        copies.mkdir(parents=True)
        for sstable in sstables:
            named = parse_name(filesystem, posixpath.join(path, sstable.file))
            assert named is not None
            for file in files[named[0].id]:
                with _faults_of_copy(file, own):
                    _copy(filesystem, file, copies / posixpath.basename(file), is_local=is_local)
            _require_intact(copies / posixpath.basename(sstable.file), sstable, folder)
        yield copies


def _files_by_id(filesystem: fs.FileSystem, folder: str) -> Mapping[str, Sequence[str]]:
    """Return the paths of the components of each SSTable in a folder."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in entries(filesystem, folder):
        if (named := parse_name(filesystem, file)) is not None:
            found[named[0].id].append(file)
    return found


@contextmanager
def _faults_of_copy(file: str, folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise kind_of(e)(
            f"{file} cannot be copied to {folder} ({plain_text(e)}): if that disk is full, free space, or name another "
            "one in TMPDIR, and run this again"
        ) from None


def _copy(filesystem: fs.FileSystem, source: str, copy: Path, *, is_local: bool) -> None:
    if not is_local or not _is_linked(source, copy):
        with filesystem.open_input_stream(source) as file, copy.open("wb") as own:
            shutil.copyfileobj(file, own, _CHUNK)
        os.utime(copy, _OLD)


def _is_linked(source: str, copy: Path) -> bool:
    """Give a file a second name, which costs no space, and which the node may move away. Return whether this is
    possible: some file systems have no links, and a user may have no right to link to the files of another one.
    """
    try:
        os.link(source, copy)
        os.utime(copy, _OLD)
    except OSError as e:
        if e.errno not in (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK):
            raise
        copy.unlink(missing_ok=True)
        return False
    return True


def _require_intact(data: Path, sstable: RestoredSSTable, folder: str) -> None:
    if not data.exists():
        raise WritetimeError(f"{without_secrets(join(folder, sstable.file))} is missing: restore into a new folder")
    checksum = 0
    with data.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    if str(checksum) != sstable.crc32:
        raise WritetimeError(
            f"{without_secrets(join(folder, sstable.file))} has the CRC32 {checksum}, and the manifest has "
            f"{sstable.crc32}: restore into a new folder"
        )
