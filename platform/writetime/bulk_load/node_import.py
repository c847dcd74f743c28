"""Imports the SSTables of a node on the machine of this node, by the node itself: Cassandra's `nodetool import`, or
ScyllaDB's load of its folder `upload`.

It is repeatable: an import of the same cells changes nothing. A node that begins gets a file `importing-HOST_ID` in the
folder, and one that has all of its SSTables a file `imported-HOST_ID`. Unless the import is a merge, the table has to
be empty when the first node begins.
"""

import fcntl
import os
import posixpath
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from cassandra.cluster import Session
from pyarrow import fs

from writetime.bulk_load.copies import copy_sstables, left_in, remove_copies
from writetime.bulk_load.ring import nodes_of
from writetime.bulk_load.sstables import (
    OF_SCYLLA,
    RestoredSSTable,
    RestoreManifest,
    Target,
    faults_of,
    join,
    write_text,
)
from writetime.bulk_load.target import require_empty, table_id
from writetime.clients.database import DRIVER_FAULTS, driver_reason, is_without_answer
from writetime.clients.node_snapshots import listed, local_node
from writetime.clients.scylla_node import ScyllaNode, load_and_stream, scylla_node, upload_folder
from writetime.core.errors import Transient, WritetimeError
from writetime.runtime.nodetool import nodetool
from writetime.storage.locations import entries, exists, read_file, resolve, without_secrets

_IMPORTING, _IMPORTED = "importing-", "imported-"
_IMPORT_SECONDS = 6 * 3600
_COPIED_BYTES = 8 << 30


class NotHere(WritetimeError):
    """A node is on another machine, or runs as another user than this program."""


def is_imported(folder: str, manifest: RestoreManifest, host: str) -> bool:
    """Return whether a node has imported the SSTables of this manifest. Another one may have had the same folder."""
    with faults_of(folder):
        filesystem, path = resolve(join(folder, _IMPORTED + host))
        return exists(filesystem, path) and read_file(filesystem, path).decode() == manifest.identity


def is_here(address: str) -> bool:
    """Return whether an address is one of this machine."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def target_of(session: Session, manifest: RestoreManifest, folder: str) -> Target:
    """Return the target. Raise a WritetimeError if it is not the table, with the nodes, that the SSTables are for."""
    target = manifest.target
    assert target is not None
    nodes = nodes_of(session, target.table.partition(".")[0], once=manifest.version == OF_SCYLLA)
    now = replace(target, id=table_id(session, target.table), nodes=nodes)
    if now != target:
        what = "was dropped and created again" if now.id != target.id else "has other nodes or token ranges"
        raise WritetimeError(f"{target.table} {what} since {without_secrets(folder)} was written: name a new folder")
    return target


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
    load = _loader(session, folder, manifest, host)
    _begin(session, folder, manifest, host)
    own = [sstable for sstable in manifest.sstables if sstable.node == host]
    for some in _parts(folder, own, copied_bytes):
        load(some)
    write_text(folder, _IMPORTED + host, manifest.identity)
    return len(own)


def import_here(session: Session, folder: str, manifest: RestoreManifest) -> list[str]:
    """Import the SSTables of a manifest with a target on the nodes of this machine that run as this user; return the
    addresses of the other nodes that have not imported theirs yet. A node that fails does not stop the others. The
    errors are those of `import_node`; a Transient, if each is one.
    """
    target = manifest.target
    assert target is not None
    waiting = {host: node for host, node in target.nodes.items() if not is_imported(folder, manifest, host)}
    elsewhere, faults = [], []
    for host, node in waiting.items():
        if not is_here(node.address):
            elsewhere.append(node.address)
            continue
        try:
            import_node(session, folder, manifest, host)
        except NotHere:
            elsewhere.append(node.address)
        except WritetimeError as e:
            faults.append(e)
    if faults:
        kind = Transient if all(isinstance(each, Transient) for each in faults) else WritetimeError
        raise kind("; ".join(map(str, faults)))
    return elsewhere


def _loader(
    session: Session, folder: str, manifest: RestoreManifest, host: str
) -> Callable[[Sequence[RestoredSSTable]], None]:
    """Return the function that imports some SSTables into a node of this machine."""
    target = manifest.target
    assert target is not None
    address = target.nodes[host].address
    with _faults_of_node(address):
        if manifest.version == OF_SCYLLA:
            node = scylla_node(session, address)
            return partial(_refresh, node, _upload_of(node, target, address, folder), folder, target)
        properties, port = local_node(session, address)
    found = [data for data in listed(properties["data_file_directories"]) if os.path.isdir(data)]
    if not found:
        raise _elsewhere(address, folder)
    owner = os.stat(found[0])
    if os.geteuid() not in (0, owner.st_uid):
        raise _of_another_user(address, folder)
    return partial(_import, folder, manifest, host, session=session, port=port, owner=(owner.st_uid, owner.st_gid))


@contextmanager
def _faults_of_node(address: str) -> Iterator[None]:
    try:
        yield
    except DRIVER_FAULTS as e:
        reason = driver_reason(e)
        if not is_without_answer(e):
            raise WritetimeError(
                f"the settings of the node {address} cannot be read ({reason}): grant the right that is missing, see "
                "docs/security.md, and run this again"
            ) from None
        raise Transient(f"the node {address} does not answer: start it, and run this again ({reason})") from None


def _elsewhere(address: str, folder: str) -> NotHere:
    return NotHere(f"the node {address} is not on this machine: run `writetime import {without_secrets(folder)}` there")


def _of_another_user(address: str, folder: str) -> NotHere:
    return NotHere(
        f"the node {address} runs as another user: run `writetime import {without_secrets(folder)}` as that user"
    )


def _upload_of(node: ScyllaNode, target: Target, address: str, folder: str) -> Path:
    """Return the folder that a node of ScyllaDB takes SSTables from. It refuses files of another user."""
    upload = upload_folder(node, target.table, target.id)
    if upload is None:
        raise _elsewhere(address, folder)
    if os.geteuid() not in (0, upload.stat().st_uid):
        raise _of_another_user(address, folder)
    return upload


def _begin(session: Session, folder: str, manifest: RestoreManifest, host: str) -> None:
    """Record that a node begins. If it is the first one, others may have written to the table since the SSTables were
    written, or have imported into it.
    """
    target = manifest.target
    assert target is not None
    with faults_of(folder):
        names = [posixpath.basename(entry) for entry in entries(*resolve(folder))]
    if not target.merge and not any(name.startswith((_IMPORTING, _IMPORTED)) for name in names):
        require_empty(session, target.table)
    write_text(folder, _IMPORTING + host, manifest.identity)


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


def _import(
    folder: str,
    manifest: RestoreManifest,
    host: str,
    sstables: Sequence[RestoredSSTable],
    *,
    session: Session,
    port: int,
    owner: tuple[int, int],
) -> None:
    """Let a node of Cassandra move copies of SSTables to its table. It may conclude from the names of the folders above
    that files are of another table, and leave them.
    """
    target = manifest.target
    assert target is not None
    filesystem, path = resolve(folder)
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    with faults_of(folder):
        made = tempfile.TemporaryDirectory(dir=posixpath.join(path, host) if is_local else None)
    with made as own:
        # The node has another working folder.
        copies = Path(own, *target.table.split(".")).absolute()
        copies.mkdir(parents=True)
        if os.geteuid() != owner[0]:
            for each in (Path(own), copies.parent, copies):
                os.chown(each, *owner)
        copy_sstables(folder, sstables, copies)
        try:
            nodetool(port, "import", *target.table.split(".", 1), str(copies), timeout_seconds=_IMPORT_SECONDS)
        except WritetimeError as e:
            raise _import_fault(session, target.nodes[host].address, e) from None
        if left := left_in(copies, sstables):
            raise WritetimeError(f"nodetool import left {left[0]}: see the log of the node at JMX port {port}")


def _import_fault(session: Session, address: str, fault: WritetimeError) -> WritetimeError:
    """Return the error of an import that failed. If the node stopped, nodetool does not name it, nor the remedy."""
    try:
        local_node(session, address)
    except DRIVER_FAULTS as e:
        if is_without_answer(e):
            return Transient(f"the node {address} stopped during the import: start it, and run this again ({fault})")
    return fault


def _refresh(node: ScyllaNode, upload: Path, folder: str, target: Target, sstables: Sequence[RestoredSSTable]) -> None:
    """Let a node of ScyllaDB send the rows of SSTables to their replicas. A run that was killed may have left some of
    them, and the node may still load these: it deletes what it has loaded.
    """
    with _alone_in(upload):
        remove_copies(sstables, upload)
        try:
            copy_sstables(folder, sstables, upload)
            load_and_stream(node, target.table, _IMPORT_SECONDS)
            if left := left_in(upload, sstables):
                raise WritetimeError(f"the node at {node.api} left {upload / left[0]}: see its log, and run this again")
        finally:
            remove_copies(sstables, upload)


@contextmanager
def _alone_in(upload: Path) -> Iterator[None]:
    """Wait until no other program uses the folder. One that imports the same SSTables has the same names for its
    copies: if it removed those of this program before the node loads them, none would be left, as after a load.
    """
    handle = os.open(upload, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
