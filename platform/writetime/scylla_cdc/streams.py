"""The streams of a table's log, and their times.

In keyspaces with vnodes, all tables share streams, in generations. In keyspaces with tablets, each table has its own
streams, one per tablet. Both are sets of streams. A set is valid from its time to that of the next set. The write time
of a write decides in which set it is logged, so a set is read only for the write times between the two.

Source: `cdc/generation.cc`, `db/system_keyspace.cc` and `db/virtual_tables.cc` of ScyllaDB, docs/features/cdc.
"""

from bisect import bisect_right
from collections.abc import Sequence

from cassandra import ConsistencyLevel, InvalidRequest

from writetime.core.config import ScyllaCdc
from writetime.schema.columnar import decode
from writetime.schema.types import Native, quote_table
from writetime.schema.values import split_sequence
from writetime.scylla_cdc.log import LogError, StaleSets
from writetime.scylla_cdc.pages import Pages
from writetime.scylla_cdc.pieces import StreamPiece

_TIMESTAMP = Native("timestamp")
_CURRENT = 0


class StreamSets:
    """The sets of streams of one table that the database has now."""

    def __init__(self, pages: Pages, settings: ScyllaCdc, keyspace: str, table: str) -> None:
        """Read the starts of the sets. Raise a `LogError` if the database has none for the table, and `StaleSets` if
        the node that answered has none in a keyspace with tablets.
        """
        self._pages = pages
        self._settings = settings
        self._table = [keyspace, table]
        times = self._times(
            f"SELECT timestamp FROM {quote_table(settings.tablet_times)} WHERE keyspace_name = ? AND table_name = ?",
            self._table,
        )
        self._by_tablets = bool(times)
        if not times and self._has_tablets():
            # The generations belong to other tables. With them, the log would be read from streams that it lacks.
            raise StaleSets(
                f"the node that answered knows no CDC streams of {keyspace}.{table}, whose keyspace has tablets: it is "
                f"behind, so ask again. If this lasts, find the node whose {settings.tablet_times} has no rows of the "
                "table, and restart it; if no node has any, turn the table's CDC on"
            )
        times = times or self._times(
            f"SELECT time FROM {quote_table(settings.generation_times)} WHERE key = 'timestamps'", []
        )
        if not times:
            raise LogError(
                f"the database has no CDC streams for {keyspace}.{table}, neither in {settings.tablet_times} nor "
                f"in {settings.generation_times}: is this ScyllaDB, and has the table cdc = {{'enabled': true}}?"
            )
        self.times = sorted(times)
        """The start of each, in microseconds."""
        self._known: dict[int, tuple[bytes, ...]] = {}

    def streams(self, time: int) -> tuple[bytes, ...]:
        """Return the streams of the set that begins at a time. Raise a `LogError` if the set is not complete."""
        if time not in self._known:
            found = self._tablet_streams(time) if self._by_tablets else self._generation_streams(time)
            if not found:
                where = self._settings.tablet_streams if self._by_tablets else self._settings.generation_streams
                raise LogError(
                    f"{where} has no streams of the set that begins at {time // 1000} ms, which is announced"
                )
            self._known[time] = tuple(sorted(found))
        return self._known[time]

    def pieces(self, start: int, end: int, known: int, newest: int, late: int = 0) -> list[StreamPiece]:
        """Return the pieces for the write times from `start` to `end`, of the sets up to the one of `newest`.

        `known` was the newest set when everything before `start` was read. A younger set is read from its own start,
        which may be before `start` if it was published late. A closed set is read for `late` more microseconds of write
        times, because a node that did not have the next set yet may have written to its streams.
        """
        times = self.times[: bisect_right(self.times, newest)]
        until = dict(zip(times, [*times[1:], end], strict=True))
        before = max((t for t in times if t <= known), default=None)
        read = {s for t in times if t == before or (t <= known and until[t] + late > start) for s in self.streams(t)}
        current = self.streams(times[-1]) if times else ()
        starts: dict[bytes, int] = {}
        closed: dict[bytes, int | None] = {}
        for time in times:
            if time < end and (until[time] + late > start or time > known):
                for stream in self.streams(time):
                    first = start if time <= known or stream in read else min(start, time)
                    starts[stream] = min(first, starts.get(stream, first))
                    closed[stream] = until[time]
        closed |= dict.fromkeys(current)
        return [StreamPiece(stream, first, end, closed_at=closed[stream]) for stream, first in sorted(starts.items())]

    def _tablet_streams(self, time: int) -> set[bytes]:
        query = self._pages.prepare(
            f"SELECT stream_id FROM {quote_table(self._settings.tablet_streams)} "
            "WHERE keyspace_name = ? AND table_name = ? AND timestamp = ? AND stream_state = ?",
            ConsistencyLevel.ONE,
        )
        return set(self._pages.rows(query, [*self._table, time // 1000, _CURRENT])["stream_id"].to_pylist())

    def _generation_streams(self, time: int) -> set[bytes]:
        query = self._pages.prepare(
            f"SELECT streams FROM {quote_table(self._settings.generation_streams)} WHERE time = ?",
            ConsistencyLevel.QUORUM,
        )
        sets = self._pages.rows(query, [time // 1000])["streams"].to_pylist()
        return {stream for data in sets if data for stream in split_sequence(data, 4) if stream}

    def _times(self, text: str, values: Sequence[str]) -> list[int]:
        """Return the starts of sets that a query returns; none if the database has no such table."""
        try:
            query = self._pages.prepare(text, ConsistencyLevel.ONE if values else ConsistencyLevel.QUORUM)
        except InvalidRequest:
            return []
        found = self._pages.rows(query, values).column(0).combine_chunks()
        return [millis * 1000 for millis in decode(found, _TIMESTAMP).to_pylist()]

    def _has_tablets(self) -> bool:
        """Return whether the keyspace has tablets. A keyspace with vnodes has no row or no number. Older versions, like
        Cassandra, have no such table or column.
        """
        try:
            query = self._pages.prepare(
                "SELECT initial_tablets FROM system_schema.scylla_keyspaces WHERE keyspace_name = ?"
            )
        except InvalidRequest:
            return False
        found = self._pages.rows(query, self._table[:1])["initial_tablets"]
        return found.null_count < len(found)
