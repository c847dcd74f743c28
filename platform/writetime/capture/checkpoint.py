"""How far the segments of an archive are published, in `segments.jsonl`.

An archive may have any number of segments, so each save appends only the records that changed. Each line is the address
of a segment and its record, or null if it was dropped; the last line of an address counts. The file is written again
when most of its lines are out of date.
"""

import functools
import os
import posixpath
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from writetime.capture.progress import SegmentProgress
from writetime.capture.state_files import append_lines, lock_and_read, read_lines, write_lines

_FILE = "segments.jsonl"
# The file is not written again for fewer lines than this.
_FEW_LINES = 1 << 10
FORGOTTEN_SECONDS = 86_400
"""How long a published segment must be gone before its record is dropped. A folder is empty while its mount is away,
and all of its segments would be published again.
"""


@dataclass(frozen=True)
class Archived:
    """The record of a segment: its progress, its `Look` before it was read, and since when it is gone (seconds since
    1970, 0 if it is there).
    """

    progress: SegmentProgress
    complete: bool
    file: tuple[int, int]
    gone_since: float = 0.0

    @property
    def is_done(self) -> bool:
        """Return whether it is published and never read again."""
        return self.complete and self.progress.finished and self.progress.reason is None


class Checkpoint:
    """The records of segments, in a folder that only one run may use at a time. Raises a WritetimeError if another one
    uses it, or its file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # `segments` are the records, by the addresses of the segments. Change them only by `keep` and `forget`.
        self._lock, (self.segments, self._lines, self._is_whole) = lock_and_read(folder, _read)
        self._changed: set[str] = set()

    @property
    def unsaved(self) -> bool:
        """Whether the file lacks some of it, as after a disk was full."""
        return bool(self._changed)

    def keep(self, key: str, found: Archived) -> None:
        """Set the record of a segment."""
        self.segments[key] = found
        self._changed.add(key)

    def save(self) -> None:
        """Save the records that changed."""
        path = self.folder / _FILE
        if self._is_whole and self._lines + len(self._changed) <= 2 * len(self.segments) + _FEW_LINES:
            # After an error, the last line may lack its end.
            self._is_whole = False
            append_lines(path, [self._line(key) for key in sorted(self._changed)])
            self._lines += len(self._changed)
        else:
            write_lines(path, [self._line(key) for key in sorted(self.segments)])
            self._lines = len(self.segments)
        self._is_whole = True
        self._changed.clear()

    def _line(self, key: str) -> tuple[str, dict[str, Any] | None]:
        found = self.segments.get(key)
        return key, None if found is None else asdict(found)

    def forget(self, there: set[str], listed: set[str]) -> None:
        """Drop the records of published segments that are gone for long from the folders that were listed."""
        now = time.time()
        for key, found in list(self.segments.items()):
            if posixpath.dirname(key) not in listed:
                continue
            since = 0.0 if key in there else found.gone_since or now
            done = found.progress.finished and found.progress.reason is None
            if since and done and now - since >= FORGOTTEN_SECONDS:
                del self.segments[key]
                self._changed.add(key)
            elif since != found.gone_since:
                self.keep(key, replace(found, gone_since=since))

    def close(self) -> None:
        """Release the folder for another run."""
        os.close(self._lock)


def read_checkpoint(folder: Path) -> Mapping[str, Archived]:
    """Return the records of a checkpoint, which a run may be using; none if there is no such checkpoint. While the file
    stays as it is, this process reads it once. Raise a WritetimeError if it is damaged.
    """
    try:
        info = (folder / _FILE).stat()
    except FileNotFoundError:
        return {}
    return _as_of(folder, info.st_ino, info.st_size, info.st_mtime_ns)


@functools.lru_cache(1)
def _as_of(folder: Path, _inode: int, _size: int, _changed_at: int) -> Mapping[str, Archived]:
    return _read(folder)[0]


def _read(folder: Path) -> tuple[dict[str, Archived], int, bool]:
    """Return the records, the number of lines, and whether lines may be appended to them."""
    lines, is_whole = read_lines(folder / _FILE)
    found: dict[str, Archived] = {}
    for key, record in lines:
        if record is None:
            found.pop(key, None)
        else:
            size, modified = record["file"]
            of_file = {"progress": SegmentProgress(**record["progress"]), "file": (size, modified)}
            found[key] = Archived(**record | of_file)
    return found, len(lines), is_whole
