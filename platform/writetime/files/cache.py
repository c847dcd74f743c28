"""The cache of decoded files, on a disk of this machine. It may be deleted at any time, and changes no result.

A file of the lake never changes, and no name is used twice. So a decoded file stays valid, and the hash of the file's
address is its name.
"""

import functools
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from writetime.core.config import Settings
from writetime.core.private_folders import restrict_home
from writetime.delta.parquet import open_file
from writetime.delta.storage import Storage
from writetime.delta.versions import DataFile
from writetime.files.decoded import DamagedDecodedFile, Decoded, decode, read, write
from writetime.files.expiries import expiry_bounds

# The most bytes of a decoded file per byte of Parquet. It bounds the space to free.
_GROWTH = 3
_SUFFIX = ".decoded"
Found = TypeVar("Found")
_log = logging.getLogger(__name__)


class OpenFiles:
    """The decoded files that a process has opened, so that it checks and maps each once. It closes the longest unused
    ones if there are more than `most_files`, or if those that are not mapped take more than `most_bytes` of memory.
    """

    def __init__(self, most_files: int = 4096, most_bytes: int = 128 << 20) -> None:
        self._most_files = most_files
        self._most_bytes = most_bytes
        self._files: OrderedDict[str, Decoded] = OrderedDict()
        self._memory = 0
        self._lock = threading.Lock()

    def find(self, path: str) -> Decoded | None:
        """Return a file by the path of its decoded form."""
        with self._lock:
            if path in self._files:
                self._files.move_to_end(path)
            return self._files.get(path)

    def keep(self, path: str, decoded: Decoded) -> None:
        """Keep a file open."""
        with self._lock:
            self._drop(path)
            self._files[path] = decoded
            self._memory += decoded.memory
            while len(self._files) > self._most_files or self._memory > self._most_bytes:
                self._drop(next(iter(self._files)))

    def close(self, path: str) -> None:
        """Close a file, if it is open."""
        with self._lock:
            self._drop(path)

    def close_all(self) -> None:
        """Close all files."""
        with self._lock:
            self._files.clear()
            self._memory = 0

    def _drop(self, path: str) -> None:
        if (decoded := self._files.pop(path, None)) is not None:
            self._memory -= decoded.memory


open_files = OpenFiles()


# The seconds between which the data of files expires (`expiry_bounds`), by the paths of their decoded forms, as this
# process has read them from the files' footers.
bounds: dict[str, tuple[int, int]] = {}
_MOST_BOUNDS = 1 << 16
_NOTHING_EXPIRES = (1 << 63) - 1, -(1 << 63)


@dataclass(frozen=True)
class Cache:
    """Decoded files in a folder. It can be sent to a task: each machine has its own folder.

    `limit` bounds the size of all files together, in bytes. Files of the lake below `smallest` bytes are decoded into
    memory, which costs less than writing them.
    """

    folder: Path = Path()
    limit: int = 0
    smallest: int = 256 << 10

    @classmethod
    def of(cls, settings: Settings) -> "Cache":
        """Return the cache of an installation; a relative path is relative to the working folder."""
        return cls(Path(settings.lake.cache).resolve(), round(settings.lake.cache_gib * (1 << 30)))

    def read(self, storage: Storage, file: DataFile, read_from: Callable[[Decoded], Found]) -> Found:
        """Return what a function reads from a decoded file of the lake. If the decoded file is damaged, it is made
        again, and the function is called again.
        """
        path = _path_of(self.folder, storage.address, file.path)
        decoded = self._open(path, storage, file)
        try:
            return read_from(decoded)
        except DamagedDecodedFile:
            open_files.close(path)
            Path(path).unlink(missing_ok=True)
            return read_from(self._open(path, storage, file))

    def expiring(self, storage: Storage, file: DataFile, after: int, until: int) -> list[pa.RecordBatch]:
        """Return the rows of a file of the lake where data expires in `after` < t <= `until` (seconds), in order."""
        if not self._may_expire(storage, file, after, until):
            return []
        return self.read(storage, file, lambda decoded: decoded.expiring(after, until))

    def next_expiry(self, storage: Storage, file: DataFile, after: int) -> int | None:
        """Return the first second after this one at which data of a file expires; None if there is none."""
        if not self._may_expire(storage, file, after, None):
            return None
        return self.read(storage, file, lambda decoded: decoded.next_expiry(after))

    def _may_expire(self, storage: Storage, file: DataFile, after: int, until: int | None) -> bool:
        """Return whether data of a file may expire in `after` < t <= `until`; False by the footer of a file that is not
        decoded. Each refresh asks this of all files, and the cache may be too small for all of them.
        """
        path = _path_of(self.folder, storage.address, file.path)
        # To decode a small file costs not much more than to read its footer.
        is_small = file.size < self.smallest
        if is_small or open_files.find(path) is not None or (self._keeps(file) and Path(path).exists()):
            return True
        if (found := bounds.get(path)) is None:
            with open_file(storage, file.path) as source:
                found = expiry_bounds(source) or _NOTHING_EXPIRES
            if len(bounds) >= _MOST_BOUNDS:
                bounds.clear()
            bounds[path] = found
        first, last = found
        return after < last and (until is None or first <= until)

    def _keeps(self, file: DataFile) -> bool:
        return file.size >= self.smallest and _GROWTH * file.size <= self.limit

    def _open(self, path: str, storage: Storage, file: DataFile) -> Decoded:
        if (decoded := open_files.find(path)) is None:
            decoded = self._decoded(Path(path), storage, file)
            open_files.keep(path, decoded)
        return decoded

    def _decoded(self, path: Path, storage: Storage, file: DataFile) -> Decoded:
        keep = self._keeps(file)
        if keep and (found := _kept(path, file.size)) is not None:
            return found
        with open_file(storage, file.path, pre_buffer=not storage.is_local) as source:
            if keep:
                try:
                    restrict_home(self.folder)
                    self.folder.mkdir(parents=True, exist_ok=True)
                    self._make_room(_GROWTH * file.size)
                    write(source, path, file.size)
                    return read(path, file.size)
                except (OSError, DamagedDecodedFile) as e:
                    _log.warning("%s cannot keep %s: %r", self.folder, file.path, e)
            return decode(source)

    def size(self) -> int:
        """Return the bytes of all files in the folder, including those of other programs; 0 if it cannot be read."""
        try:
            return sum(size for _, size, _ in self._files())
        except OSError:
            return 0

    def forget(self, tokens: Iterable[int]) -> int:
        """Delete the decoded files that have one of these tokens or are damaged, and what killed programs left; return
        their number. Their files of the lake may be gone.
        """
        count = 0
        for path in self.folder.iterdir() if self.folder != Path() and self.folder.is_dir() else ():
            if path.name.endswith((_SUFFIX, ".part")) and _may_have(path, tokens):
                open_files.close(str(path))
                path.unlink(missing_ok=True)
                count += 1
        return count

    def _files(self) -> list[tuple[int, int, Path]]:
        """Return the files of the folder: when each was used last (nanoseconds), its bytes, and its path."""
        files = []
        for path in self.folder.iterdir():
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            files.append((found.st_mtime_ns, found.st_size, path))
        return files

    def _make_room(self, needed: int) -> None:
        files = self._files()
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total + needed <= self.limit:
                return
            # A file that is open would still occupy the disk.
            open_files.close(str(path))
            path.unlink(missing_ok=True)
            total -= size


# The result is cached, because a batch needs each file of the table.
@functools.lru_cache(1 << 16)
def _path_of(folder: Path, address: str, path: str) -> str:
    name = hashlib.sha256(f"{address}/{path}".encode()).hexdigest()[:40]
    return str(folder / (name + _SUFFIX))


def _may_have(path: Path, tokens: Iterable[int]) -> bool:
    """Return whether a decoded file has one of these tokens, or cannot be read."""
    try:
        found = read(path, None)
        return any(found.between(token, token) for token in tokens)
    except (OSError, DamagedDecodedFile):
        return True


def _kept(path: Path, size: int) -> Decoded | None:
    try:
        found = read(path, size)
    except (OSError, DamagedDecodedFile):
        return None
    # This time is the order of deletion. It cannot be set in a read-only folder.
    with suppress(OSError):
        path.touch()
    return found
