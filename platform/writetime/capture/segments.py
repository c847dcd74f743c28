"""The segments in a node's `cdc_raw`: their sizes, those that the node has left, and the release of completed ones.

A segment in `cdc_raw` is a hard link to the file in the node's `commitlog_directory`. The node deletes its own link
when it has closed the segment and flushed its data, or has replayed it after a crash. If the segment has captured
writes, it marks `_cdc.idx` as COMPLETED first. It leaves other segments as they are (Cassandra 4.0 to 5.0):

- At each clean stop, the node deletes the segment that it has prepared, but not the link in `cdc_raw`
  (`AbstractCommitLogSegmentManager.discardAvailableSegment`). The segment is empty.
- Before 5.0, a restarted node deletes each replayed segment without captured writes, but not the link in `cdc_raw`
  (`AbstractCommitLogSegmentManager.handleReplayedSegment`).
- After a crash, an operator removes segments that the node cannot replay, or the replay skips a segment. The link may
  have captured writes, and a `_cdc.idx` without COMPLETED, or none.

So a segment whose only link is that in `cdc_raw` has all of its data.
"""

import os
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from pyarrow import fs

from writetime.capture.gap_records import GapRecords
from writetime.capture.progress import SegmentProgress
from writetime.capture.state_files import copy_file, lock_segments, sync_folder
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError, naming, reason_of
from writetime.core.outages import is_outage
from writetime.storage.file_errors import CorruptFile
from writetime.storage.locations import resolve
from writetime.storage.regular_files import copy_regular
from writetime.storage.segment import END, Segment

# The kernel's time for files may be that of its last tick.
_CLOCK_ERROR_NS = 50_000_000


class SegmentFolder:
    """A node's `cdc_raw`, and the settings for completed segments. Only one agent at a time may use it. Raises a
    WritetimeError if there is no such folder, or another agent uses it.
    """

    def __init__(self, settings: Settings, told_by_node: str | None) -> None:
        capture = settings.capture
        path = capture.cdc_raw or Path(told_by_node or "")
        if not path.is_dir() or not (capture.cdc_raw or told_by_node):
            raise WritetimeError(
                f"the node's folder of segments ({path}) is not on this machine: run the agent where the node runs, "
                "with cdc_enabled: true in its cassandra.yaml, or set capture.cdc_raw"
            )
        self.path = path
        self._lock = lock_segments(path)
        self._gaps = GapRecords(capture)
        self._action = capture.finished
        self._archive: tuple[fs.FileSystem, str] | None = None
        if capture.finished == "archive":
            # The settings require it.
            assert capture.archive is not None
            self._archive = filesystem, folder = resolve(capture.archive)
            filesystem.create_dir(folder, recursive=True)

    def close(self) -> None:
        """Release the folder for another agent."""
        os.close(self._lock)

    def take_from(self, earlier: Path) -> None:
        """Move the segments of the node's earlier `cdc_raw` to this one. A segment that the node replayed at its start
        is here already, and has at least the same changes. Raise a WritetimeError if another agent uses that folder.
        """
        lock = lock_segments(earlier)
        try:
            # A segment comes before its index, because the index makes it readable.
            for file in sorted(earlier.glob("CommitLog-*"), key=lambda path: path.suffix != ".log"):
                if not (self.path / file.name).exists():
                    copy_file(file, self.path / file.name)
                file.unlink()
        finally:
            os.close(lock)

    def aside(self) -> list[int]:
        """Return the bytes of each segment that is set aside; 0 for one that vanished and was not put back."""
        files = [self._gaps.folder / f"{name}.log" for name in self._gaps.names("CommitLog-")]
        return [file.stat().st_size if file.exists() else 0 for file in files]

    def release(self, segment: Segment) -> bool:
        """Delete, archive or keep a segment whose changes are all published. Return whether it was removed."""
        self._gaps.file(Path(segment.name).stem).unlink(missing_ok=True)
        if self._action == "keep":
            return False
        self._remove(segment, self._archive)
        return True

    def set_aside(self, segment: Segment, progress: SegmentProgress, written_before: int) -> Path:
        """Move a segment with a fault to the folder for these, with a file for the reason. Return its new path."""
        self.note_missing(progress, written_before)
        self._remove(segment, (fs.LocalFileSystem(), str(self._gaps.folder)))
        return self._gaps.folder / segment.name

    def _remove(self, segment: Segment, target: tuple[fs.FileSystem, str] | None) -> None:
        """Delete a segment, once its files are copied to a folder, if there is one."""
        files = [file for file in _files(segment) if file.exists()]
        if target is not None:
            for file in files:
                _copy(file, *target)
        # The index is deleted last, because without it the agent would take a live segment for one without changes.
        for file in files:
            file.unlink(missing_ok=True)
        sync_folder(self.path)

    def note_missing(self, progress: SegmentProgress, written_before: int) -> None:
        """Record why changes of a segment are missing, and a time (microseconds) before which they were written. The
        record is in the folder of the segments that were set aside.
        """
        reason = {
            "segment": progress.name,
            "reason": progress.reason,
            "published_up_to": progress.position,
            "mutations_read": progress.mutations,
            "mutations_set_aside_by_table": progress.set_aside,
            "changes_set_aside": progress.decoded - progress.published,
            "written_before": written_before,
            "tables": progress.lacking,
            "set_aside_at": datetime.now(UTC).isoformat(),
        }
        self._gaps.write(Path(progress.name).stem, reason)

    def tidy(self, name: str) -> None:
        """Delete the index of a segment that no longer exists."""
        (self.path / name.replace(".log", "_cdc.idx")).unlink(missing_ok=True)


def backlog_of(cdc_raw: Path) -> int:
    """Return the bytes that the node counts against `cdc_total_space`."""
    total = 0
    for file in cdc_raw.iterdir():
        try:
            total += file.lstat().st_size
        except FileNotFoundError:
            continue
    return total


class LeftSegments:
    """Finds the segments that the node has left in `cdc_raw`, and will neither write nor mark as complete any more.
    They have no other link. The file of one must not have changed for `seconds`: the node itself deletes the link of a
    segment without captured writes just after its own link, and an operator may still be copying a segment into the
    folder.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # The size and modification time (ns) of each left file, and when they were first seen, by the monotonic clock.
        self._seen: dict[int, tuple[tuple[int, int], float]] = {}
        # The names of the segments that have no complete index, and were left too recently to be read.
        self.recent: list[str] = []

    def begin_round(self, segments: Iterable[Segment]) -> None:
        """Look at the files of a new round. Call this before their indexes are read, which the node writes first."""
        before, self._seen, self.recent = self._seen, {}, []
        for segment in segments:
            if (file := _left_file(segment)) is not None:
                known = before.get(segment.id)
                since = known[1] if known is not None and known[0] == file else time.monotonic()
                self._seen[segment.id] = file, since

    def may_be_read(self, segment: Segment) -> bool:
        """Return whether a segment without a complete index may be read to its end. If it was left too recently, note
        it in `recent`.
        """
        if segment.id not in self._seen:
            return False
        if time.monotonic() - self._seen[segment.id][1] >= self._seconds:
            return True
        self.recent.append(segment.name)
        return False


def readable(
    segments: Iterable[Segment], is_left: Callable[[Segment], bool]
) -> tuple[list[tuple[Segment, int]], list[tuple[Segment, str]]]:
    """Return the segments with changes, each with the offset up to which it may be read (`END` if it is complete), and
    those whose index is invalid or cannot be read, each with its fault.

    A segment is complete if the node marks it as complete, or has left it without the mark (`is_left`). The node marks
    the segments of a crash after it has replayed them.
    """
    found, faults = [], []
    for segment in segments:
        try:
            index = segment.cdc_index()
        except Exception as e:
            if is_outage(e):
                raise
            if isinstance(e, CorruptFile) and is_left(segment):
                # Nobody repairs the index, and the segment is read to its end without it.
                found.append((segment, END))
                continue
            # For example, the agent may not be allowed to read this index. No other segment waits for it.
            faults.append((segment, f"the index of {segment.name} cannot be read: {reason_of(e)}"))
            continue
        if (index is not None and index.completed) or is_left(segment):
            found.append((segment, END))
        elif index is not None:
            found.append((segment, index.offset))
    return found, faults


def closed_before(segment: Segment) -> int:
    """Return a time (microseconds) before which all data of a segment was written that the node has completed or left.

    The node closes a segment before it writes COMPLETED to the index, or deletes its own link. Both change a file. So a
    snapshot that began after that has the data, also if the agent finds a fault of the segment later.
    """
    try:
        changed = max(file.lstat().st_ctime_ns for file in _files(segment) if file.exists())
    except (FileNotFoundError, ValueError):
        # It was just deleted.
        changed = time.time_ns()
    return (changed + _CLOCK_ERROR_NS) // 1000


def _left_file(segment: Segment) -> tuple[int, int] | None:
    """Return the size and the modification time of a segment's file if it has no other link."""
    try:
        found = os.lstat(segment.path)
    except FileNotFoundError:
        return None
    return (found.st_size, found.st_mtime_ns) if found.st_nlink == 1 else None


def _files(segment: Segment) -> tuple[Path, Path]:
    log_file = Path(segment.path)
    return log_file, log_file.with_name(f"{log_file.stem}_cdc.idx")


def _copy(file: Path, filesystem: fs.FileSystem, folder: str) -> None:
    """Copy a file completely, so that the source may be deleted."""
    target = f"{folder}/{file.name}"
    if isinstance(filesystem, fs.LocalFileSystem):
        copy_file(file, Path(target))
        return
    with naming(target), filesystem.open_output_stream(f"{target}.part") as copy:
        size = copy_regular(file, copy.write)
    filesystem.move(f"{target}.part", target)
    if filesystem.get_file_info(target).size != size:
        raise WritetimeError(f"{target} is a copy of {file}, but has another size")
