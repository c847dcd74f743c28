"""The segments in a node's `cdc_raw`: their sizes, and the release of completed ones."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from pyarrow import fs

from writetime.capture.progress import OPEN, SegmentProgress
from writetime.capture.state_files import copy_file, lock_segments, read_json, sync_folder, write_json
from writetime.core.config import Capture, Settings
from writetime.core.errors import WritetimeError, naming, reason_of
from writetime.core.outages import is_outage
from writetime.storage.file_errors import CorruptFile
from writetime.storage.locations import resolve
from writetime.storage.regular_files import copy_regular
from writetime.storage.segment import END, Segment

log = logging.getLogger(__name__)

# The kernel's time for files may be that of its last tick.
_CLOCK_ERROR_NS = 50_000_000
_UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30}


@dataclass(frozen=True)
class CaptureGap:
    """Missing changes, and the reason. All were written before `until`, and found to be missing at `since`
    (microseconds). `tables` are the ids of their tables; None if they may belong to any table.
    """

    reason: str
    until: int
    since: int = 0
    tables: frozenset[str] | None = None

    def concerns(self, table_id: UUID) -> bool:
        """Return whether changes of a table may be missing."""
        return self.tables is None or str(table_id) in self.tables


class SegmentFolder:
    """A node's `cdc_raw`, and the settings for completed segments. Only one agent at a time may use it.

    Raises:
        WritetimeError: there is no such folder, another agent uses it, or no folder to archive to is set.
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
        self._capture = capture
        self._aside = aside_folder(capture)
        self._keep = capture.finished == "keep"
        self._archive: Callable[[Path], None] | None = None
        if capture.finished == "archive":
            # The settings require it.
            assert capture.archive is not None
            filesystem, folder = resolve(capture.archive)
            filesystem.create_dir(folder, recursive=True)
            self._archive = lambda file: _copy(file, filesystem, f"{folder}/{file.name}")

    def close(self) -> None:
        """Release the folder for another agent."""
        os.close(self._lock)

    def take_from(self, earlier: Path) -> None:
        """Move the segments of the node's earlier `cdc_raw` to this one.

        A segment that the node replayed at its start is here already, and has at least the same changes.

        Raises:
            WritetimeError: another agent uses the earlier folder.
            OSError: a segment cannot be moved.
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

    def gaps(self) -> list[CaptureGap]:
        """Return the gaps: segments that were set aside, or that vanished.

        A gap ends when its segment was put back and published, or when an operator deletes the file with its reason. A
        gap without a write time holds all tables.
        """
        return [gap for path in self._reasons() if (gap := _gap_of(path)) is not None]

    def aside(self) -> int:
        """Return the number of segments that are set aside, or that vanished and were not put back."""
        return len([path for path in self._reasons() if path.name.startswith("CommitLog-")])

    def aside_bytes(self) -> int:
        """Return the total size of the segments that were set aside."""
        files = (path.with_name(path.name.replace(".reason.json", ".log")) for path in self._reasons())
        return sum(file.stat().st_size for file in files if file.exists())

    def _reasons(self) -> list[Path]:
        return sorted(self._aside.glob("*.reason.json"))

    def release(self, segment: Segment) -> bool:
        """Delete, archive or keep a segment whose changes are all published. Return whether it was removed."""
        self._reason(segment.name).unlink(missing_ok=True)
        if self._keep:
            return False
        log_file, index = _files(segment)
        if self._archive is not None:
            for file in (log_file, index):
                if file.exists():
                    self._archive(file)
        # The index is deleted last, because without it the agent would take a live segment for one without changes.
        log_file.unlink(missing_ok=True)
        index.unlink(missing_ok=True)
        sync_folder(self.path)
        return True

    def set_aside(self, segment: Segment, progress: SegmentProgress, written_before: int) -> Path:
        """Move a segment with a fault to the folder for these, with a file for the reason. Return its new path."""
        self.note_missing(progress, written_before)
        target = self._aside / segment.name
        log_file, index = _files(segment)
        for file in (log_file, index):
            if file.exists():
                copy_file(file, self._aside / file.name)
        log_file.unlink(missing_ok=True)
        index.unlink(missing_ok=True)
        return target

    def note_missing(self, progress: SegmentProgress, written_before: int) -> None:
        """Record why changes of a segment are missing, and a time (microseconds) before which they were written. The
        record is in the folder of the segments that were set aside.
        """
        self._aside.mkdir(parents=True, exist_ok=True)
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
        write_json(self._reason(progress.name), reason)

    def _reason(self, name: str) -> Path:
        return (self._aside / name).with_suffix(".reason.json")

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


def aside_folder(capture: Capture) -> Path:
    """Return the folder of segments with faults and of the reasons for missing changes."""
    return capture.aside or capture.state_dir / "aside"


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


def _gap_of(path: Path) -> CaptureGap | None:
    """Return the gap that a file describes; None if it was just deleted. A file that cannot be read holds all tables,
    because its gap may belong to any.
    """
    try:
        reason = read_json(path)
        return None if reason is None else _gap(path, reason)
    except Exception as e:
        if is_outage(e):
            raise
        return CaptureGap(
            f"{path} cannot be read ({reason_of(e)}): restore it, or delete it to accept the gap", OPEN, 0, None
        )


def _gap(path: Path, reason: dict[str, Any]) -> CaptureGap:
    tables = reason.get("tables")
    return CaptureGap(
        f"{path}: {reason['reason']}",
        reason.get("written_before", OPEN),
        round(datetime.fromisoformat(reason["set_aside_at"]).timestamp() * 1_000_000),
        None if tables is None else frozenset(tables),
    )


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


def _files(segment: Segment) -> tuple[Path, Path]:
    log_file = Path(segment.path)
    return log_file, log_file.with_name(f"{log_file.stem}_cdc.idx")


def _copy(file: Path, filesystem: fs.FileSystem, target: str) -> None:
    """Copy a file completely, so that the source may be deleted."""
    if isinstance(filesystem, fs.LocalFileSystem):
        copy_file(file, Path(target))
        return
    with naming(target), filesystem.open_output_stream(f"{target}.part") as copy:
        size = copy_regular(file, copy.write)
    filesystem.move(f"{target}.part", target)
    if filesystem.get_file_info(target).size != size:
        raise WritetimeError(f"{target} is a copy of {file}, but has another size")


def space_of(text: str) -> int:
    """Return the bytes of a size as Cassandra's settings write it, such as `4096MiB`.

    Raises:
        WritetimeError: it is not a size.
    """
    match = re.fullmatch(r"(\d+)\s*(\w*)", text)
    if match is None or match[2] not in _UNITS:
        raise WritetimeError(f"{text!r} is not a size such as 4096MiB")
    return int(match[1]) << _UNITS[match[2]]
