"""One table's log through one connection: its schema, the rows to read, and its gaps."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa
from cassandra.cluster import Session

from writetime.clients.database import connect, find_replicas
from writetime.core.config import ScyllaCdc, Settings
from writetime.core.errors import WritetimeError
from writetime.schema.system import read_schemas
from writetime.schema.table import TableSchema
from writetime.schema.types import quote_table
from writetime.schema.values import BadValue, UnknownFields
from writetime.scylla_cdc.column_history import LEEWAY, History
from writetime.scylla_cdc.deltas import Deltas
from writetime.scylla_cdc.findings import CLOSED_SET
from writetime.scylla_cdc.images import CheckedDeltas, Images
from writetime.scylla_cdc.late_rows import LateStep
from writetime.scylla_cdc.log import SUFFIX, Altered, LogError, LogGap, NoTable, StaleSets, check_log, uuid_time
from writetime.scylla_cdc.options import cdc_options
from writetime.scylla_cdc.pages import Pages, retried
from writetime.scylla_cdc.pieces import StreamPiece, read_pieces
from writetime.scylla_cdc.streams import StreamSets

log = logging.getLogger(__name__)

# Why a log does not have new writes: CDC is off, or logs keys without values.
Lack = Literal["off", "keys"]
# The most difference between this machine's clock and the database's, in microseconds. `confidence_seconds` is longer.
_CLOCK_DIFFERENCE = 5_000_000
# A late answer hides a difference of as much. So after one that took longer (microseconds), the clocks are compared
# again, so many times.
_LATE_ANSWER = 1_000_000
_CLOCK_READS = 5
STALE_SECONDS = 5.0
"""How long sets of streams are queried again while the node that answers is behind."""
STALE_PAUSE_SECONDS = 0.2
"""The pause before each of these attempts."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class EarlierTtl:
    """How long the log kept rows from before the last alteration of the table, and when that was last read from the
    table's options. Both are 0 if that is not known.
    """

    ttl: int = 0
    seen_at: int = 0


class CdcSource:
    """The log of one table. Times are in microseconds."""

    def __init__(self, session: Session, pages: Pages, settings: Settings, table: str) -> None:
        """Read the table's schema and CDC options, and the start of its sets of streams.

        Raises:
            LogError: there is no such table, it has no log, or its log cannot be read. Or this machine's clock differs
                from the database's.
        """
        _check_clock(session)
        self.asked_at = now()
        """The time before the options were read."""
        self.settings = settings.scylla_cdc
        self.name = table
        self._session = session
        self._pages = pages
        self.schema, self._log = self._current_schemas()
        self._options = cdc_options(self._pages, self.settings, self.schema.keyspace, self.schema.name)
        self.sets = StreamSets(self._pages, self.settings, self.schema.keyspace, self.schema.name)

    @property
    def lack(self) -> Lack | None:
        """Why the log does not have new writes; None if it does."""
        if self._options.values.get("enabled") != "true":
            return "off"
        has_values = bool(self.schema.static or self.schema.regular)
        return "keys" if self._options.values.get("delta") == "keys" and has_values else None

    @property
    def options_since(self) -> int:
        """The time since which the table's CDC options have been the same: its last alteration, in microseconds."""
        return self._options.since

    @property
    def preimages_since(self) -> int | None:
        """The write time since which the log is known to have preimages, in microseconds; None if it has none."""
        if self._options.values.get("preimage", "false") == "false":
            return None
        return self.options_since + LEEWAY if self.options_since else 0

    @property
    def ttl(self) -> int:
        """How long the log keeps a row; 0 is forever."""
        if self.settings.log_ttl_seconds is not None:
            return self.settings.log_ttl_seconds * 1_000_000
        return int(self._options.values.get("ttl", 86_400)) * 1_000_000

    def _current_schemas(self) -> tuple[TableSchema, TableSchema]:
        """Return the present schemas of the table and its log. Raise a `LogError` if they do not match."""
        keyspace, _, name = self.name.partition(".")
        names = [name, name + SUFFIX]
        found = retried(
            lambda: read_schemas(self._session, [keyspace], names), "SELECT * FROM system_schema.tables, ..."
        )
        if self.name not in found:
            raise NoTable(f"the database has no table {self.name}", self.name)
        if self.name + SUFFIX not in found:
            raise LogError(
                f"{self.name} has no CDC log: ALTER TABLE {quote_table(self.name)} WITH cdc = {{'enabled': true}}"
            )
        schema, log_schema = found[self.name], found[self.name + SUFFIX]
        if isinstance(schema, WritetimeError):
            raise LogError(f"{self.name} cannot be read: {schema}")
        if isinstance(log_schema, WritetimeError):
            raise LogError(f"{self.name + SUFFIX} cannot be read: {log_schema}")
        check_log(schema, log_schema)
        return schema, log_schema

    def settled(self) -> int:
        """Return the time up to which writes have reached the log, unless their timestamps are late."""
        return settled_until(self.settings)

    def first(self, earlier: EarlierTtl = EarlierTtl()) -> int:
        """Return the time from which the log has all rows. A row keeps the TTL with which it was written."""
        at, first = now(), self.sets.times[0]
        if earlier.ttl:
            first = max(first, min(at - earlier.ttl, self.options_since))
        if not self.ttl or self._lowered_lately(earlier, at):
            return first
        return max(first, at - self.ttl)

    def _lowered_lately(self, earlier: EarlierTtl, at: int) -> bool:
        """Return whether the TTL was lowered so short a time ago that no row since then has expired."""
        is_lower = earlier.seen_at > 0 and not 0 < earlier.ttl <= self.ttl
        return is_lower and earlier.seen_at - _CLOCK_DIFFERENCE >= at - self.ttl

    @property
    def created(self) -> int:
        """The time at which the log was created, by the id of its table; 0 if the id has no time."""
        log_id = self._log.id
        return 0 if log_id is None or log_id.version != 1 else uuid_time(log_id)

    def check_gap(self, start: int, snapshot_at: int | None, earlier: EarlierTtl = EarlierTtl()) -> bool:
        """Return whether a snapshot is needed for writes since a time that the log no longer has. Raise a `LogGap` if
        the snapshot does not have them either.
        """
        if self.settings.log_ttl_seconds is not None:
            earlier = EarlierTtl()
        first = self.first(earlier)
        if start >= first:
            return False
        if snapshot_at is not None and snapshot_at >= first:
            return True
        reason = "the streams of that time are no longer known"
        if first > self.sets.times[0]:
            is_earlier = self._lowered_lately(earlier, now())
            kept = earlier.ttl if is_earlier else min(ttl for ttl in (self.ttl, earlier.ttl) if ttl)
            reason = f"the log keeps rows for {kept // 1_000_000} seconds"
        raise LogGap(self.name, start, first, reason)

    def read(
        self,
        pieces: Sequence[StreamPiece],
        fields: Sequence[str] | None = None,
        *,
        snapshot_at: int | None = None,
        found: Counter[str] | None = None,
        texts: list[str] | None = None,
        late: LateStep | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read pieces of streams as batches of changes with `fields`, None for all.

        The snapshot that closes a gap began at `snapshot_at`. `found` counts findings that are not changes. With
        `texts`, the images in pieces that are read for the first time are compared: it gets descriptions of the first
        differences, and all fields are needed. `late` counts the late rows.

        Raises:
            LogGap: rows lack their key because a key column was renamed, or their values because `delta` was `keys`.
            LogError: rows are missing, or ScyllaDB does not write such rows.
            Altered: a value is newer than the schema.
        """
        history = History(
            *(self.schema, self._log),
            options_since=self.options_since,
            empty_updates=self.settings.empty_updates == "pass",
            snapshot_at=snapshot_at,
        )
        counts = Counter() if found is None else found
        first = deltas = Deltas(self.schema, history, fields, counts)
        if texts is not None:
            first = CheckedDeltas(self.schema, history, counts, texts, self.preimages_since)

        def see(piece: StreamPiece, times: np.ndarray) -> None:
            if piece.closed_at is not None and not piece.again:
                counts[CLOSED_SET] += int((times >= piece.closed_at).sum())
            if late is not None:
                late.see(piece, times)

        try:
            for converter, again in ((first, False), (deltas, True)):
                some = [piece for piece in pieces if piece.again == again]
                yield from read_pieces(self._pages, converter, some, self.settings.streams_at_once, see)
        except UnknownFields as e:
            raise Altered(f"{self.name} was altered while its log was read: {e}") from None
        except BadValue as e:
            raise LogError(f"the log of {self.name}: {e}") from None

    def images(self, pieces: Sequence[StreamPiece]) -> Iterator[pa.RecordBatch]:
        """Read the pre- and postimages among pieces of streams, see `images`."""
        images = Images(self.schema, History(self.schema, self._log))
        yield from read_pieces(self._pages, images, pieces, self.settings.streams_at_once)

    def check_schema(self, expected: TableSchema) -> None:
        """Raise `Altered` if the table was altered since its schema was read: later rows of the log may have more."""
        found, _ = self._current_schemas()
        if found != expected:
            raise Altered(
                f"{self.name} was altered while its log was read: it was {_columns(expected)}, and is "
                f"{_columns(found)}; read again (a stream continues from its checkpoint with the new columns)"
            )


@contextmanager
def open_source(settings: Settings, table: str) -> Iterator[CdcSource]:
    """Connect to the database for the log of a table.

    Raises:
        WritetimeError: the database does not answer.
        LogError: there is no such table, it has no log, or one that cannot be read.
    """
    with connect_for_pages(settings, [table]) as (session, pages):
        yield until_fresh(lambda: CdcSource(session, pages, settings, table))


def until_fresh(ask: Callable[[], _T]) -> _T:
    """Query sets of streams for some seconds, until the node that answers is not behind: each attempt may reach another
    one. Raise the `StaleSets` of the last answer.
    """
    deadline = time.monotonic() + STALE_SECONDS
    while True:
        try:
            return ask()
        except StaleSets as e:
            if time.monotonic() >= deadline:
                raise
            log.info("%s; asking again", e)
            time.sleep(STALE_PAUSE_SECONDS)


@contextmanager
def connect_for_pages(settings: Settings, tables: Iterable[str]) -> Iterator[tuple[Session, Pages]]:
    """Connect to the database for rows and for pages. Each has its own session, because their results have different
    forms. Streams of the logs of `tables` are read from their replicas.

    Raises:
        WritetimeError: the database does not answer.
    """
    with connect(settings) as session:
        assert session.cluster is not None
        for keyspace in {table.partition(".")[0] for table in tables}:
            find_replicas(session, keyspace)
        yield session, Pages(session.cluster.connect())


def now() -> int:
    """Return the time of this machine."""
    return time.time_ns() // 1000


def settled_until(settings: ScyllaCdc) -> int:
    """Return the time up to which writes have reached a log, unless their timestamps are late."""
    return now() - round(settings.confidence_seconds * 1e6)


def _check_clock(session: Session) -> None:
    """Raise a `LogError` if this machine's clock differs from the database's: it decides which windows have ended, and
    which rows expired. The difference may be larger than the limit by the time of the last answer.
    """
    query = "SELECT toUnixTimestamp(now()) AS at FROM system.local"
    ahead = behind = 0
    for _ in range(_CLOCK_READS):
        before = now()
        [(milliseconds,)] = retried(lambda: list(session.execute(query)), query)
        after = now()
        ahead, behind = before - milliseconds * 1000, milliseconds * 1000 - after
        if after - before <= _LATE_ANSWER:
            break
    if max(ahead, behind) > _CLOCK_DIFFERENCE:
        by = f"{max(ahead, behind) / 1e6:.1f} seconds {'ahead of' if ahead > 0 else 'behind'}"
        raise LogError(
            f"this machine's clock is {by} the database's, so windows would be read too early, or expired rows would "
            "go unnoticed: synchronise the clocks of this machine and of the database's nodes with NTP"
        )


def _columns(schema: TableSchema) -> str:
    return f"({', '.join(f'{c.name} {c.type}' for c in schema.columns)})"
