"""Finds SSTables of captured tables whose writes are in no segment, after a restart of the node or an import of files.

An SSTable names the first and the last position in the log of its writes. `cdc_raw` has each segment with a write to a
captured table, until the agent releases it. So if `cdc_raw` has none of an SSTable's segments, the SSTable has writes
that were not captured: the node ran with `cdc_enabled: false` or with another `cdc_raw_directory`, or it or another
program deleted the segments.

A flush does not wait for a sync of the log. So if the node crashes between a flush and the next sync, the SSTable has
writes that the log lacks. Then the SSTable's last position lies behind the end of its segment. If the segment has no
other write to a captured table, the node deletes it after the replay (tested on Cassandra 5.0).

`nodetool import` moves files into a table's folder, and `nodetool refresh` gives new names to files that an operator
put there (`SSTableImporter`). A flush, a compaction and a stream write the file in the folder. A move keeps the
modification time of `Data.db`, and sets its change time. So a new name was moved there in two cases:

- The file was written before the last look at the folder.
- The file was changed after it was written, and has no other link. A link for a snapshot or an incremental backup also
  changes a file. It may be deleted again, but then it also changed the folder of the snapshots or backups.

Files that `nodetool import --copy-data` copies are not found.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyarrow import fs

from writetime.capture.node_facts import NodeFacts
from writetime.capture.node_schemas import NodeTable
from writetime.storage.file_errors import MissingFile
from writetime.storage.locations import Location, parse_name
from writetime.storage.segment import MARKER_BYTES, Segment
from writetime.storage.statistics import newest_write, read_log_intervals

# A compaction may replace SSTables while they are listed.
_ATTEMPTS = 5
# Of the modification times of files, in microseconds.
_CLOCK_ERROR = 1_000_000
# A node numbers its segments from the time of its start (milliseconds). A start rarely makes so many segments, so ids
# that are further apart belong to two starts (`CommitLogSegment`).
START_MILLIS = 1000
# Seconds between two looks for imports.
_SECONDS = 0.1
# Looks take at most this share of the time.
_SHARE = 0.01
# The kernel's time for files may be that of its last tick.
_CLOCK_ERROR_NS = 50_000_000


@dataclass
class LastCheck:
    """The facts as of the last good check of an agent, and the segments that came since.

    Attributes:
        checked_at: all writes before it were logged (microseconds).
        generation: that of the node; None before the first check.
        newest_segment: the id of the newest segment in `cdc_raw`.
        newest_written: that of the newest one with writes to captured tables, at least that before the oldest one at
            the first listing; None before that. Segments up to this one may be released.
        cdc_raw: the folder of the segments.
        is_folder_of_node: False if the node's path is another one on this machine, as in a container.
        truncated: the time of the last TRUNCATE of tables (microseconds), by their ids.
    """

    checked_at: int = 0
    generation: int | None = None
    newest_segment: int = 0
    newest_written: int | None = None
    cdc_raw: str | None = None
    is_folder_of_node: bool = False
    truncated: dict[str, int] = field(default_factory=dict)


def lost_writes(facts: NodeFacts, table: NodeTable, came: Mapping[int, Segment], last: LastCheck) -> str | None:
    """Return which writes to a table are in none of the segments that came to `cdc_raw`; None if there are no such
    writes. Raise an OSError or a StorageError if the table's files cannot be read.

    `table` was captured before. `came` are the segments that are or were in `cdc_raw`, and were not released before the
    last good check, by id.
    """
    for attempt in range(_ATTEMPTS):
        try:
            for location in _written_after(facts, table, last.checked_at - _CLOCK_ERROR):
                if (lost := _lost_writes(location, facts, table, came, last)) is not None:
                    return lost
        except MissingFile:
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        break
    return None


def _lost_writes(
    location: Location, facts: NodeFacts, table: NodeTable, came: Mapping[int, Segment], last_check: LastCheck
) -> str | None:
    found = read_log_intervals(location)
    if found.host_id is not None and str(found.host_id) != facts.host_id:
        return None
    for first, last in found.intervals:
        if first == last:
            # The node replayed these writes from earlier segments.
            continue
        if not any(first[0] <= segment <= last[0] for segment in came):
            # A segment that was listed without writes may have had writes from before the table was captured.
            is_new = first[0] > last_check.newest_segment
            may_be_new = first[0] > (last_check.newest_written or 0)
            if is_new or (may_be_new and newest_write(location) >= table.captured_at):
                return f"has writes in segments {first[0]} to {last[0]}, and none of them came"
        elif last[0] in came and (end := _end_of(last[0], came)) is not None and last[1] > end:
            return (
                f"has writes up to offset {last[1]} of segment {last[0]}, and the node crashed before it synced those "
                f"after {end}"
            )
    return None


def _end_of(segment: int, came: Mapping[int, Segment]) -> int | None:
    """Return the offset of the next write to a segment of an earlier start; None if nobody knows it."""
    if max(came) - segment < START_MILLIS:
        # The node may still write to it.
        return None
    end = came[segment].end()
    return None if end is None else end + MARKER_BYTES


def _written_after(facts: NodeFacts, table: NodeTable, after: int) -> Iterator[Location]:
    """Yield the complete SSTables of a table that were written after a time (microseconds)."""
    folders = [Path(folder) / table.keyspace for folder in facts.data_folders]
    if not any(folder.parent.is_dir() for folder in folders):
        raise MissingFile(f"no folder of data_file_directories ({', '.join(facts.data_folders)}) is on this machine")
    for folder in folders:
        for path in _statistics(folder / f"{table.name}-{table.id.hex}"):
            try:
                is_newer = path.stat().st_mtime_ns // 1000 >= after
            except FileNotFoundError:
                raise MissingFile(f"{path} does not exist") from None
            named = parse_name(fs.LocalFileSystem(), str(path)) if is_newer else None
            if named is not None and named[0].exists("TOC.txt"):
                yield named[0]


def _statistics(folder: Path) -> list[Path]:
    # `glob` would hide that the folder may not be read.
    return [path for path in folder.iterdir() if path.name.endswith("-Statistics.db")] if folder.is_dir() else []


# --- imports of files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Folder:
    """The names in a folder of a table, its modification time, and the time of the last look (nanoseconds)."""

    names: frozenset[str]
    modified: int
    looked_at: int


class Imports:
    """The folders of captured tables, as of the last look. A look costs one system call per table, and lists only the
    folders that have changed.
    """

    def __init__(self) -> None:
        self._folders: dict[Path, _Folder] = {}
        self._next = 0.0

    def look(
        self, data_folders: Sequence[str], tables: Sequence[NodeTable], *, always: bool
    ) -> Iterator[tuple[NodeTable, str]]:
        """Yield tables with the path of an SSTable that was moved into its folder since the last look. Do nothing if
        the last look was just now, unless `always`.
        """
        if not always and time.monotonic() < self._next:
            return
        began = time.monotonic()
        folders = {Path(f) / t.keyspace / f"{t.name}-{t.id.hex}": t for f in data_folders for t in tables}
        for path, table in folders.items():
            before = self._folders.get(path)
            if (present := _look(path, before)) is None:
                continue
            if before is not None and (moved := _moved_in(path, before, present)) is not None:
                yield table, moved
            # The caller has recorded it.
            self._folders[path] = present
        self._folders = {path: self._folders[path] for path in folders if path in self._folders}
        now = time.monotonic()
        self._next = now + max(_SECONDS, (now - began) / _SHARE)


def _look(path: Path, before: _Folder | None) -> _Folder | None:
    """Return what a folder has now; None if it cannot be read."""
    now = time.time_ns()
    try:
        modified = path.stat().st_mtime_ns
        if before is not None and before.modified == modified:
            return replace(before, looked_at=now)
        names = frozenset(name for name in os.listdir(path) if name.endswith("-Data.db"))
    except OSError:
        # The table was dropped, or the agent may not read the node's files.
        return None
    # A change just after this look may leave the modification time as it is.
    return _Folder(names, modified if now - modified > _CLOCK_ERROR_NS else 0, now)


def _moved_in(path: Path, before: _Folder, now: _Folder) -> str | None:
    """Return the path of a file that is new, and was not written here."""
    for name in now.names - before.names:
        try:
            found = (path / name).stat()
        except OSError:
            # For example, a compaction has deleted it.
            continue
        written = found.st_mtime_ns + _CLOCK_ERROR_NS
        is_changed = found.st_nlink == 1 and found.st_ctime_ns > written and not _is_linked_since(path, written)
        if written < before.looked_at or is_changed:
            return str(path / name)
    return None


def _is_linked_since(path: Path, written: int) -> bool:
    """Return whether links for snapshots or backups may have been made or deleted after a time."""
    for folder in (path / "snapshots", path / "backups"):
        try:
            if folder.stat().st_mtime_ns + 2 * _CLOCK_ERROR_NS >= written:
                return True
        except FileNotFoundError:
            continue
    return False
