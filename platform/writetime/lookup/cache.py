"""The folder of decoded files, on a disk of this machine. It may be deleted at any time, and changes no result.

A file of the lake never changes, and no name is used twice. So a decoded file stays valid, and the hash of the file's
address is its name.
"""

import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from writetime.core.config import Settings
from writetime.lake.delta import DataFile
from writetime.lake.storage import Storage
from writetime.lookup.decoded import Damaged, Decoded, decode, read, write

# Bytes of a decoded file per byte of Parquet, as a bound for the room to make.
_GROWTH = 3
_SUFFIX = ".decoded"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cache:
    """Decoded files in a folder.

    `limit` bounds all of them together, in bytes. Files of the lake below `smallest` bytes are decoded into memory each
    time, which costs less than to keep them.
    """

    folder: Path
    limit: int
    smallest: int = 256 << 10

    @classmethod
    def of(cls, settings: Settings) -> "Cache":
        """Return the cache of an installation; a relative path is relative to the working folder."""
        return cls(Path(settings.lake.cache).resolve(), round(settings.lake.cache_gib * (1 << 30)))

    def decoded(self, storage: Storage, file: DataFile) -> Decoded:
        """Return the rows of a file of the lake. If the folder cannot hold them, they are decoded into memory."""
        path = self._path(storage, file)
        keep = file.size >= self.smallest and _GROWTH * file.size <= self.limit
        if keep and (found := _kept(path, file.size)) is not None:
            return found
        with pq.ParquetFile(file.path, filesystem=storage.filesystem(), pre_buffer=not storage.is_local) as source:
            if keep:
                try:
                    return self._made(path, source, file)
                except (OSError, Damaged) as e:
                    _log.warning("%s cannot keep %s: %r", self.folder, file.path, e)
            return decode(source)

    def discard(self, storage: Storage, file: DataFile) -> None:
        """Delete the decoded form of a file, because it is damaged."""
        self._path(storage, file).unlink(missing_ok=True)

    def _path(self, storage: Storage, file: DataFile) -> Path:
        name = hashlib.sha256(f"{storage.address}/{file.path}".encode()).hexdigest()[:40]
        return self.folder / (name + _SUFFIX)

    def _made(self, path: Path, source: pq.ParquetFile, file: DataFile) -> Decoded:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_room(_GROWTH * file.size)
        write(source, path, file.size)
        return read(path, file.size)

    def _make_room(self, needed: int) -> None:
        files = []
        for path in self.folder.iterdir():
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            files.append((found.st_mtime_ns, found.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total + needed <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= size


def _kept(path: Path, size: int) -> Decoded | None:
    try:
        found = read(path, size)
    except (OSError, Damaged):
        return None
    # The order of deletion. A folder that is only read has none.
    with suppress(OSError):
        path.touch()
    return found
