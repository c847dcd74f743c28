"""Finds writes that are in no segment although the node has them, in the SSTables of captured tables.

An SSTable names the first and the last position in the log of its writes. `cdc_raw` has each segment with a write to a
captured table, until the agent releases it. So if `cdc_raw` has none of an SSTable's segments, the SSTable has writes
that were not captured: the node ran with `cdc_enabled: false` or with another `cdc_raw_directory`, or it or another
program deleted the segments.

A flush does not wait for a sync of the log. So if the node crashes between a flush and the next sync, the SSTable has
writes that the log lacks. Then the SSTable's last position lies behind the end of its segment. If the segment has no
other write to a captured table, the node deletes it after the replay (tested on Cassandra 5.0).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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


@dataclass
class LastCheck:
    """The facts as of the last good check of an agent, and the segments that came since.

    Attributes:
        checked_at: all writes before it were logged (microseconds).
        generation: that of the node; None before the first check.
        newest_segment: the id of the newest segment in `cdc_raw`.
        newest_written: that of the newest one with writes to captured tables. Segments up to this one may be released.
            At first (None), some may follow in any listed segment.
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
