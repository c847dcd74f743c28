"""Copies SSTables of a restore to a folder of this machine, from which a node takes them."""

import errno
import os
import posixpath
import shutil
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

from writetime.bulk_load.sstables import RestoredSSTable, faults_of, join
from writetime.core.errors import WritetimeError, plain_text
from writetime.core.outages import kind_of
from writetime.storage.locations import entries, parse_name, resolve, without_secrets

_CHUNK = 1 << 20
# The times of copies, in seconds since 1970. An agent finds an import by a file that is new in the folder of the table,
# and older than the last look there.
_OLD = 0, 0
_LAST = "-TOC.txt"


def copy_sstables(folder: str, sstables: Sequence[RestoredSSTable], copies: Path) -> None:
    """Copy all components of SSTables of a restore, each with its list of components (TOC.txt) at the end: without it,
    an SSTable does not count. Files of a disk get a second name, if the owner of the new folder has them.

    Raises WritetimeError: an SSTable is missing or damaged, or cannot be copied.
    """
    filesystem, path = resolve(folder)
    with faults_of(folder):
        files = {node: _files_by_id(filesystem, posixpath.join(path, node)) for node in {s.node for s in sstables}}
    for sstable in sstables:
        named = parse_name(filesystem, posixpath.join(path, sstable.file))
        assert named is not None
        components = sorted(files[sstable.node][named[0].id], key=lambda file: file.endswith(_LAST))
        if not components or not components[-1].endswith(_LAST):
            raise _missing(folder, sstable)
        for file in components:
            if file.endswith(_LAST):
                _require_intact(copies / posixpath.basename(sstable.file), sstable, folder)
            with _faults_of_copy(file, copies):
                _copy(filesystem, file, copy := copies / posixpath.basename(file))
                _sync(copy)
    with _faults_of_copy(folder, copies):
        _sync(copies)


def _sync(path: Path) -> None:
    """Bring a file or folder to the disk: the node moves it to its table as it is."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove_copies(sstables: Sequence[RestoredSSTable], copies: Path) -> None:
    """Remove what there is of copies, each list of components at the beginning."""
    for sstable in sstables:
        stem = posixpath.basename(sstable.file).removesuffix("Data.db")
        for file in sorted(copies.glob(f"{stem}*"), key=lambda file: not file.name.endswith(_LAST)):
            file.unlink(missing_ok=True)


def left_in(copies: Path, sstables: Sequence[RestoredSSTable]) -> list[str]:
    """Return the names of the copies of Data.db that are still in a folder."""
    names = (posixpath.basename(sstable.file) for sstable in sstables)
    return sorted(name for name in names if (copies / name).exists())


def _files_by_id(filesystem: fs.FileSystem, folder: str) -> Mapping[str, Sequence[str]]:
    """Return the paths of the components of each SSTable in a folder."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in entries(filesystem, folder):
        if (named := parse_name(filesystem, file)) is not None:
            found[named[0].id].append(file)
    return found


@contextmanager
def _faults_of_copy(file: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise kind_of(e)(
            f"{file} cannot be copied to {folder} ({plain_text(e)}): if that disk is full, free space, or name another "
            "one in TMPDIR, and run this again"
        ) from None


def _copy(filesystem: fs.FileSystem, source: str, copy: Path) -> None:
    owner = copy.parent.stat()
    is_own = isinstance(filesystem, fs.LocalFileSystem) and os.stat(source).st_uid == owner.st_uid
    if is_own and _is_linked(source, copy):
        return
    with filesystem.open_input_stream(source) as file, copy.open("wb") as own:
        shutil.copyfileobj(file, own, _CHUNK)
    os.utime(copy, _OLD)
    if owner.st_uid != os.geteuid():
        os.chown(copy, owner.st_uid, owner.st_gid)


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


def _missing(folder: str, sstable: RestoredSSTable) -> WritetimeError:
    return WritetimeError(f"{without_secrets(join(folder, sstable.file))} is missing: restore into a new folder")


def _require_intact(data: Path, sstable: RestoredSSTable, folder: str) -> None:
    if not data.exists():
        raise _missing(folder, sstable)
    checksum = 0
    with data.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    if str(checksum) != sstable.crc32:
        raise WritetimeError(
            f"{without_secrets(join(folder, sstable.file))} has the CRC32 {checksum}, and the manifest has "
            f"{sstable.crc32}: restore into a new folder"
        )
