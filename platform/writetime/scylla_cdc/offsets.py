"""The offset up to which a stream has read a log, and the pieces between two offsets.

All streams of the log are read up to the same time, so an offset is that time, and the newest known set of streams. A
stream is read only up to `CdcSource.settled()`.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from writetime.core.config import ScyllaCdc
from writetime.core.instants import instant_text
from writetime.schema.types import quote_table
from writetime.scylla_cdc.column_history import LEEWAY
from writetime.scylla_cdc.log import LogError, LogGap, StaleSets
from writetime.scylla_cdc.pieces import StreamPiece
from writetime.scylla_cdc.source import CdcSource, EarlierTtl, Lack, now

log = logging.getLogger(__name__)

# Rows expire while they are read: a read of the whole log gets the rows that it keeps this much longer, in
# microseconds.
_MARGIN = 600_000_000
# Why a log lacks writes, while it does and afterwards.
_REASONS: dict[Lack, tuple[str, str]] = {
    "off": ("the table's CDC is off; turn it on again first", "the table's CDC was off"),
    "keys": (
        "the table's CDC option delta is keys, so the log does not have the written values; set it to full first",
        "the table's CDC option delta was keys",
    ),
}


@dataclass(frozen=True)
class Offset:
    """Times are in microseconds. A checkpoint of Spark has the fields as JSON."""

    until: int
    """All write times before this have been read."""
    newest: int
    """Start of the newest set of streams that was known."""
    since: int
    """Where the stream began."""
    table_id: str
    off_since: int | None = None
    """CDC was found off, or logging keys only, so later writes are not in the log."""
    lack: Lack = "off"
    """Which of these two options was found."""
    off_until: int | None = None
    """When the table was altered to log everything again: a snapshot that closes this gap is younger."""
    snapshot_at: int | None = None
    """When the snapshot was begun that closed a gap: it has the older rows that cannot be read."""
    captured_since: int = 0
    """Changes captured before this belong to an earlier table of the name; 0 if none is known."""
    ttl: int = 0
    """How long the log keeps its next rows, see `CdcSource.ttl`. If the option was altered since, later rows have
    another TTL."""
    whole_since: int = 0
    """From here on the log was sure to have all rows when the stream began; 0 if it has not been recorded."""
    ttl_seen_at: int = 0
    """When the log was last seen to have this `ttl`; 0 if it has not been recorded."""

    @property
    def earlier_ttl(self) -> EarlierTtl:
        """How long the log keeps the next rows, unless they are from after an alteration of the table."""
        return EarlierTtl(self.ttl, self.ttl_seen_at)

    @property
    def is_early(self) -> bool:
        """Whether windows were read before they were over. A stream may also begin at a time to come."""
        return self.since < self.until > now()


def first_offset(source: CdcSource, start: int | None, snapshot_at: int | None) -> Offset:
    """Return the offset at which a stream begins: a time, or the start of the log. Raise a `LogGap` if the log does not
    have all writes since that time.
    """
    if start is None:
        start = _first_kept(source)
        log.info("%s is read from %d microseconds since 1970 on; older writes need a backfill", source.name, start)
    else:
        source.check_gap(start, snapshot_at)
    return _offset_at(source, start)


def offset_of_new(source: CdcSource, before: Offset) -> Offset:
    """Return the first offset in the log of a table that was dropped and created again. It is not after the creation of
    the log, so `next_offset` reports rows that the log no longer has as a gap. The log of the earlier table was read up
    to `before`, and the new table was created later.
    """
    created = max(source.created or before.until, source.sets.times[0])
    return _offset_at(source, min(_first_kept(source), created))


def _first_kept(source: CdcSource) -> int:
    """Return the time from which the log has all rows, and keeps them while they are read."""
    first = source.first()
    return first + min(_MARGIN, source.ttl // 10) if source.ttl and first > source.sets.times[0] else first


def _offset_at(source: CdcSource, start: int) -> Offset:
    newest = max((t for t in source.sets.times if t <= start), default=source.sets.times[0])
    table_id, whole_since = str(source.schema.id), _whole_since(source, start)
    return Offset(start, newest, start, table_id, ttl=source.ttl, whole_since=whole_since, ttl_seen_at=source.asked_at)


def _whole_since(source: CdcSource, start: int) -> int:
    """Return the time from which the log certainly has all rows, if it should have them from `start` on. The last
    alteration of the table may have raised the log's `ttl`, and older rows keep their TTL.
    """
    altered = source.options_since
    if source.settings.log_ttl_seconds is not None or altered <= max(start, source.created + LEEWAY):
        return start
    log.warning(
        "%s was altered at %s: if that raised the ttl of its log, some earlier rows may have expired; take a snapshot "
        "then, and backfill it",
        *(source.name, instant_text(altered)),
    )
    return altered


def interval(source: CdcSource, start: int | None, end: int | None, snapshot_at: int | None) -> list[StreamPiece]:
    """Return the pieces for the write times from one time to another; by default for the whole log.

    Raises:
        LogGap: the log does not have all of them.
        LogError: the end is not settled yet, or the log has no values.
    """
    settled = source.settled()
    if end is not None and end > settled:
        raise LogError(
            f"write times up to {instant_text(end)} are not settled yet: read up to {instant_text(settled)} at most, "
            "or set a shorter confidence_seconds"
        )
    if source.lack == "keys":
        raise LogError(
            f"{source.name} has the CDC option delta: keys, with which its log does not have the written values; "
            f"ALTER TABLE {quote_table(source.name)} WITH cdc = {{'enabled': true, 'delta': 'full'}}, then take a "
            "snapshot, backfill it, and read from that time on"
        )
    if source.lack == "off":
        statement = f"ALTER TABLE {quote_table(source.name)} WITH cdc = {{'enabled': true}}"
        log.warning("the CDC of %s is off: its log does not have new writes: %s", source.name, statement)
    end = settled if end is None else end
    first = first_offset(source, start, snapshot_at)
    late = rescan_micros(source.settings)
    return source.sets.pieces(first.until, end, end, end, late) if first.until < end else []


def next_offset(source: CdcSource, start: Offset, settled: int, snapshot_at: int | None) -> Offset:
    """Return the end of the next batch: an offset some windows later, or the same offset if no window is settled.

    Raises:
        LogGap: the next rows are no longer in the log, or were never written to it because CDC was off.
        LogError: the table was created again, or windows were read before they were over.
    """
    if start.is_early:
        raise LogError(
            f"{source.name} was read up to {instant_text(start.until)}, which is in the future: the reader's clock "
            "was ahead, or this machine's is behind. If it was ahead, writes up to then may be missing: after that "
            f"time, take a snapshot and bring it in with `writetime backfill {source.name} PATHS`"
        )
    if check(source, start, snapshot_at):
        # A reader that starts without the snapshot needs it, too.
        start = replace(start, snapshot_at=snapshot_of(start, snapshot_at))
    if source.lack is not None:
        if start.off_since is None or start.off_until is not None:
            since = start.until if start.off_since is None else start.off_since
            return replace(start, off_since=since, off_until=None, lack=source.lack)
        raise LogGap(source.name, start.off_since, now(), _REASONS[source.lack][0])
    if start.off_since is not None:
        until = source.options_since if start.off_until is None else start.off_until
        if snapshot_at is None or snapshot_at < until:
            return replace(start, off_until=until)
        # The snapshot also has the earlier rows that cannot be read.
        start = replace(start, off_since=None, off_until=None, snapshot_at=snapshot_at)
    window = round(source.settings.window_seconds * 1e6)
    most = max(1, round(source.settings.batch_seconds * 1e6) // window)
    windows = min((settled - start.until) // window, most)
    if windows <= 0:
        return start
    until = start.until + windows * window
    newest = max((t for t in source.sets.times if t < until), default=start.newest)
    # Rows from before the last alteration may have the TTL from before it.
    ttl = source.ttl if until >= source.options_since else start.ttl
    seen_at = source.asked_at if ttl == source.ttl else start.ttl_seen_at
    return replace(start, until=until, newest=max(newest, start.newest), ttl=ttl, ttl_seen_at=seen_at)


def check(source: CdcSource, start: Offset, snapshot_at: int | None) -> bool:
    """Check whether a stream can continue from an offset; return whether it needs the snapshot for that.

    Raises:
        LogGap: the next rows are not in the log, and a snapshot does not have them.
        LogError: the table was created again.
    """
    if start.table_id != str(source.schema.id):
        raise LogError(
            f"{source.name} was dropped and created again (its id was {start.table_id} and is {source.schema.id}): "
            "start a new stream with another checkpoint"
        )
    since, until = start.off_since, start.off_until
    if since is not None and until is not None and source.lack is None and (snapshot_at is None or snapshot_at < until):
        raise LogGap(source.name, since, until, _REASONS[start.lack][1])
    return source.check_gap(start.until, snapshot_of(start, snapshot_at), start.earlier_ttl)


def snapshot_of(place: Offset, snapshot_at: int | None) -> int | None:
    """Return the time at which the youngest snapshot with the missing rows began: a named one, or the offset's."""
    return max((t for t in (snapshot_at, place.snapshot_at) if t is not None), default=None)


def pieces_between(source: CdcSource, start: Offset, end: Offset) -> list[StreamPiece]:
    """Return the pieces between two offsets, and the older pieces to read again for late rows. Raise `StaleSets` if the
    database's answer lacks a set of streams that was known, whose rows would be missed.
    """
    if start.until == end.until:
        return []
    times = source.sets.times
    # The oldest sets are dropped once their rows have expired.
    lost = start.newest >= times[0] and start.newest not in times
    if lost or end.newest > times[-1]:
        known = start.newest if lost else end.newest
        raise StaleSets(
            f"the node that answered knows no CDC streams of {source.name} from {instant_text(known)} on, which were "
            "known before: it is behind, so ask again. If this lasts, restart the nodes whose tables of streams lack "
            "them; if all nodes lack them, begin again with a new checkpoint (the agent: another "
            "capture.state_dir), and bring in a snapshot from after that with `writetime backfill`"
        )
    late = rescan_micros(source.settings)
    pieces = source.sets.pieces(start.until, end.until, start.newest, end.newest, late)
    first, last = read_again(source.settings, start, end)
    if first < last:
        again = source.sets.pieces(first, last, end.newest, end.newest, late)
        pieces += [replace(piece, again=True) for piece in again]
    return pieces


def rescan_micros(settings: ScyllaCdc) -> int:
    """Return the time after which a window is read again, in microseconds and whole windows; 0 if it is not."""
    window = round(settings.window_seconds * 1e6)
    return -(-round(settings.rescan_seconds * 1e6) // window) * window


def read_again(settings: ScyllaCdc, start: Offset, end: Offset) -> tuple[int, int]:
    """Return the write times from which and up to which windows are read again between two offsets."""
    back = rescan_micros(settings)
    first, last = (max(offset.until - back, end.since) for offset in (start, end))
    return (first, last) if back else (last, last)


def shared_out(pieces: Sequence[StreamPiece], tasks: int) -> list[list[StreamPiece]]:
    """Distribute pieces to tasks, with neighbours in the same one."""
    size = -(-len(pieces) // tasks) if pieces else 1
    return [list(pieces[i : i + size]) for i in range(0, len(pieces), size)]
