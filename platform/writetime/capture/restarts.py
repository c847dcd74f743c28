"""Finds writes that a node logged elsewhere while no agent looked, in the SSTables of captured tables.

An SSTable names the first and the last segment that its writes are in. `cdc_raw` has each segment with a write to a
captured table, until the agent releases it. So if `cdc_raw` has none of an SSTable's segments, the SSTable has writes
that were not captured: the node ran with `cdc_enabled: false` or with another `cdc_raw_directory`, or it or another
program deleted the segments.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pyarrow import fs

from writetime.capture.node_facts import NodeFacts
from writetime.capture.node_schemas import Table
from writetime.storage.file_errors import Missing
from writetime.storage.locations import Location, parse_name
from writetime.storage.statistics import read_log_intervals

# A compaction may replace SSTables while they are listed.
_ATTEMPTS = 5


def lost_segments(facts: NodeFacts, table: Table, listed: Sequence[int], after: int) -> tuple[int, int] | None:
    """Return the first and the last segment of writes to a table of whose segments none is listed; None if there are no
    such writes.

    Args:
        facts: the node.
        table: a table that was captured before.
        listed: the ids of the segments in `cdc_raw`.
        after: the newest segment that was listed while all was well. Segments up to this one may be released.

    Raises:
        OSError, StorageError: the table's files cannot be read.
    """
    for attempt in range(_ATTEMPTS):
        try:
            for location in _written_after(facts, table, after):
                found = read_log_intervals(location)
                if found.host_id is not None and str(found.host_id) != facts.host_id:
                    continue
                for first, last in found.intervals:
                    # If they are equal, the node replayed these writes from earlier segments.
                    if first != last and first[0] > after and not _has_any(first[0], last[0], listed):
                        return first[0], last[0]
        except Missing:
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        break
    return None


def _has_any(first: int, last: int, listed: Sequence[int]) -> bool:
    return any(first <= segment <= last for segment in listed)


def _written_after(facts: NodeFacts, table: Table, after: int) -> Iterator[Location]:
    """Yield the complete SSTables of a table that were written after a segment was begun."""
    folders = [Path(folder) / table.keyspace for folder in facts.data_folders]
    if not any(folder.parent.is_dir() for folder in folders):
        raise Missing(f"no folder of data_file_directories ({', '.join(facts.data_folders)}) is on this machine")
    for folder in folders:
        for path in _statistics(folder / f"{table.name}-{table.id.hex}"):
            try:
                is_newer = path.stat().st_mtime * 1000 >= after
            except FileNotFoundError:
                raise Missing(f"{path} does not exist") from None
            named = parse_name(fs.LocalFileSystem(), str(path)) if is_newer else None
            if named is not None and named[0].exists("TOC.txt"):
                yield named[0]


def _statistics(folder: Path) -> list[Path]:
    # `glob` would hide that the folder may not be read.
    return [path for path in folder.iterdir() if path.name.endswith("-Statistics.db")] if folder.is_dir() else []
