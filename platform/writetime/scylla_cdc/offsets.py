"""How far a stream has read a log, and what lies between two such places.

All streams of the log are read up to the same time, so a place is that time, and how much was known of the streams.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from writetime.instants import instant_text
from writetime.scylla_cdc.log import Gap, LogError
from writetime.scylla_cdc.reading import Piece
from writetime.scylla_cdc.source import CdcSource, now

log = logging.getLogger(__name__)

# Rows expire while they are read: who asks for all that a log has gets what it keeps this much longer, in microseconds.
_MARGIN = 600_000_000


@dataclass(frozen=True)
class Offset:
    """Times are in microseconds."""

    until: int
    """All write times before this have been read."""
    newest: int
    """When the newest set of streams begins that was known."""
    since: int
    """Where the stream began."""
    table_id: str
    off_since: int | None = None
    """CDC was found off, so what was written since is not in the log."""

    @classmethod
    def parse(cls, found: dict[str, Any]) -> "Offset":
        """Return the place that Spark kept in a checkpoint."""
        return cls(**found)

    def json(self) -> dict[str, Any]:
        """Return the place as Spark keeps it."""
        return asdict(self)


def first_offset(source: CdcSource, start: int | None, snapshot_at: int | None) -> Offset:
    """Return where a stream begins: at a time, or with what the log has.

    Raises:
        Gap: the log has not got everything since that time.
    """
    if start is None:
        start = source.first()
        if source.ttl and start > source.sets.times[0]:
            start += min(_MARGIN, source.ttl // 10)
        log.info("%s is read from %d microseconds since 1970 on; older writes need a backfill", source.name, start)
    else:
        source.check_gap(start, snapshot_at)
    newest = max((t for t in source.sets.times if t <= start), default=source.sets.times[0])
    return Offset(start, newest, start, str(source.schema.id))


def interval(source: CdcSource, start: int | None, end: int | None, snapshot_at: int | None) -> list[Piece]:
    """Return what to read for the write times from one time to another; by default all that the log has.

    Raises:
        Gap: the log has not got all of it.
        LogError: the end is not settled yet.
    """
    settled = source.settled()
    if end is not None and end > settled:
        raise LogError(
            f"write times up to {instant_text(end)} are not settled yet: read up to {instant_text(settled)} at most, "
            "or set a shorter confidence_seconds"
        )
    if not source.is_on:
        log.warning("the CDC of %s is off: its log does not have what is written now", source.name)
    end = settled if end is None else end
    first = first_offset(source, start, snapshot_at)
    return source.sets.pieces(first.until, end, end, end) if first.until < end else []


def next_offset(source: CdcSource, start: Offset, settled: int, snapshot_at: int | None) -> Offset:
    """Return the end of the next batch: some windows further on, or the same place if no window is settled.

    Raises:
        Gap: what comes next is not in the log any more, or was never written to it, as CDC was off.
        LogError: the table was created anew.
    """
    check(source, start, snapshot_at)
    if not source.is_on:
        if start.off_since is None:
            return replace(start, off_since=start.until)
        raise Gap(source.name, start.off_since, now(), "the table's CDC is off; turn it on again first")
    window = round(source.settings.window_seconds * 1e6)
    most = max(1, round(source.settings.batch_seconds * 1e6) // window)
    windows = min((settled - start.until) // window, most)
    if windows <= 0:
        return start
    until = start.until + windows * window
    newest = max((t for t in source.sets.times if t < until), default=start.newest)
    return replace(start, until=until, newest=max(newest, start.newest), off_since=None)


def check(source: CdcSource, start: Offset, snapshot_at: int | None) -> None:
    """Look whether a stream can go on from a place.

    Raises:
        Gap: what comes next is not in the log, and a snapshot does not have it.
        LogError: the table was created anew.
    """
    if start.table_id != str(source.schema.id):
        raise LogError(
            f"{source.name} was dropped and created again (its id was {start.table_id} and is {source.schema.id}): "
            "start a new stream with another checkpoint"
        )
    if source.is_on and start.off_since is not None and (snapshot_at is None or snapshot_at <= start.off_since):
        raise Gap(source.name, start.off_since, now(), "the table's CDC was off")
    source.check_gap(start.until, snapshot_at)


def pieces_between(source: CdcSource, start: Offset, end: Offset) -> list[Piece]:
    """Return what to read between two places; and what to read again of what is older, for late timestamps."""
    if start.until == end.until:
        return []
    pieces = source.sets.pieces(start.until, end.until, start.newest, end.newest)
    if source.settings.rescan_seconds:
        back = round(source.settings.rescan_seconds * 1e6)
        first, last = (max(offset.until - back, end.since) for offset in (start, end))
        if first < last:
            pieces += source.sets.pieces(first, last, end.newest, end.newest)
    return pieces


def shared_out(pieces: Sequence[Piece], tasks: int) -> list[list[Piece]]:
    """Share pieces out to tasks, neighbours to the same one."""
    size = -(-len(pieces) // tasks) if pieces else 1
    return [list(pieces[i : i + size]) for i in range(0, len(pieces), size)]
