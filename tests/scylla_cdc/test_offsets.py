"""The offsets at which a stream begins and continues; no server is needed."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from tests.scylla_cdc.databases import SECOND, now
from writetime.core.config import ScyllaCdc
from writetime.schema.cql import parse_table
from writetime.scylla_cdc.log import LogError, LogGap, StaleSets, first_uuid, log_table
from writetime.scylla_cdc.offsets import Offset, first_offset, next_offset, offset_of_new, pieces_between
from writetime.scylla_cdc.options import CdcOptions
from writetime.scylla_cdc.pieces import StreamPiece
from writetime.scylla_cdc.source import CdcSource
from writetime.sources import scylla_cdc

HOUR = 3600 * SECOND
TABLE = parse_table("CREATE TABLE ks.t (k int PRIMARY KEY, v int)")


def source_of(created: int, *sets: int, altered: int | None = None, ttl: int = 24 * HOUR) -> CdcSource:
    """The log of a table that was created and last altered at these times, with sets of streams from some times on."""
    source = CdcSource.__new__(CdcSource)
    source.name, source.settings = TABLE.full_name, ScyllaCdc()
    source.asked_at = now()
    source.schema = replace(TABLE, id=UUID(int=1))
    source._log = replace(log_table(TABLE), id=first_uuid(created))
    options = {"enabled": "true", "ttl": str(ttl // SECOND)}
    source._options = CdcOptions(options, created if altered is None else altered)
    source.sets = SimpleNamespace(times=list(sets))  # type: ignore[assignment]
    return source


@pytest.mark.parametrize("hours", [1, 23.9, 25])
@pytest.mark.parametrize("by_tablets", [False, True])
def test_the_log_of_a_table_that_was_created_again_is_read_from_its_creation(hours: float, *, by_tablets: bool) -> None:
    """With vnodes its streams are older than the table. Rows that the log no longer has are a gap."""
    created = now() - round(hours * HOUR)
    source = source_of(created, created + 1000 if by_tablets else created - 1000 * HOUR)
    begin = offset_of_new(source, Offset(created - HOUR, 0, 0, "earlier"))
    assert begin.until <= created + 1000
    assert begin.table_id == str(source.schema.id)
    if hours < 24:
        assert next_offset(source, begin, source.settled(), None).until > begin.until
    else:
        with pytest.raises(LogGap, match="the log keeps rows for 86400 seconds"):
            next_offset(source, begin, source.settled(), None)
        assert next_offset(source, begin, source.settled(), now()).until > begin.until


def test_without_a_known_creation_the_log_is_read_from_where_that_of_the_earlier_table_was() -> None:
    source = source_of(now(), now() - 1000 * HOUR)
    source._log = replace(source._log, id=None)
    before = Offset(now() - 25 * HOUR, 0, 0, "earlier")
    assert offset_of_new(source, before).until == before.until
    assert offset_of_new(source, replace(before, until=now())).until < now() - 23 * HOUR


def test_a_query_whose_answer_lacks_a_known_set_of_streams_is_repeated() -> None:
    """A node that is behind may answer. Without the set, its rows would be missed, as the next batch begins later."""
    created = now() - HOUR
    newest = now() - HOUR // 2
    source = source_of(created, created)
    start = Offset(now() - HOUR // 4, newest, created, str(source.schema.id), ttl=24 * HOUR)
    end = next_offset(source, start, source.settled(), None)
    with pytest.raises(StaleSets, match=r"knows no CDC streams of ks\.t from"):
        pieces_between(source, start, end)


@pytest.mark.parametrize("known", range(4))
def test_an_answer_without_the_set_that_was_read_last_is_of_a_node_that_is_behind(known: int) -> None:
    """Whichever sets it has. But the oldest sets are dropped in time."""
    times = [now() - (5 - i) * HOUR for i in range(4)]
    start = Offset(now() - HOUR, times[known], times[0], str(UUID(int=1)), ttl=24 * HOUR)
    end = replace(start, until=start.until + 60 * SECOND)
    for count in range(1, 5):
        for some in itertools.combinations(times, count):
            source = source_of(times[0], *some)
            source.sets.pieces = lambda *_: []  # type: ignore[assignment]
            if times[known] in some or times[known] < some[0]:
                assert pieces_between(source, start, end) == []
            else:
                with pytest.raises(StaleSets, match=r"ask again\. If this lasts, .* with a new checkpoint"):
                    pieces_between(source, start, end)


def test_a_stream_in_spark_queries_another_node_if_one_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that returned the limit of reading is not queried again: each call has its own session."""
    created, newest = now() - HOUR, now() - HOUR // 2
    behind, other = source_of(created, created), source_of(created, created, newest)
    piece = StreamPiece(b"stream", newest, newest + SECOND)
    other.sets.pieces = lambda *_: [piece]  # type: ignore[assignment]
    nodes = [behind, behind, other]

    @contextmanager
    def opened(*_: object) -> Iterator[CdcSource]:
        yield nodes.pop(0) if len(nodes) > 1 else nodes[0]

    asked: Any = SimpleNamespace(source=opened, snapshot_at=None)
    reader = scylla_cdc.ScyllaCdcStreamReader(asked, TABLE, cast(Any, None))
    start = Offset(now() - HOUR // 4, newest, created, str(other.schema.id), ttl=24 * HOUR)
    end = replace(start, until=start.until + 30 * SECOND)
    assert [part.pieces for part in reader.partitions(asdict(start), asdict(end))] == [[piece]]
    nodes = [behind]
    monkeypatch.setattr("writetime.scylla_cdc.source.STALE_SECONDS", 0.5)
    with pytest.raises(StaleSets):
        reader.partitions(asdict(start), asdict(end))


@pytest.mark.parametrize("earlier", [24, 0])
def test_a_ttl_that_was_lowered_is_no_gap_while_later_rows_have_not_expired(earlier: int) -> None:
    """Rows keep the TTL that they were written with, 0 is forever. A stream that is behind saw the earlier one."""
    created = now() - 100 * HOUR
    before = source_of(created, created, ttl=earlier * HOUR)
    start = next_offset(before, first_offset(before, now() - 10 * HOUR, None), before.settled(), None)
    assert start.until < now() - 9 * HOUR
    # Another alteration does not matter.
    other = source_of(created, created, ttl=earlier * HOUR, altered=now())
    start = next_offset(other, start, other.settled(), None)
    assert start.ttl_seen_at == other.asked_at
    source = source_of(created, created, ttl=HOUR, altered=now())
    end = next_offset(source, start, source.settled(), None)
    assert end.until > start.until
    assert (end.ttl, end.ttl_seen_at) == (start.ttl, start.ttl_seen_at)
    for unknown in (replace(start, ttl_seen_at=now() - HOUR), replace(start, ttl_seen_at=0)):
        with pytest.raises(LogGap, match="the log keeps rows for 3600 seconds"):
            next_offset(source, unknown, source.settled(), None)
    if earlier:
        with pytest.raises(LogGap, match="the log keeps rows for 86400 seconds"):
            next_offset(source, replace(start, until=now() - 25 * HOUR), source.settled(), None)


def test_a_stream_that_begins_at_a_time_to_come_waits() -> None:
    """It has read nothing yet, so nothing was read too early. Whoever has read further has."""
    source = source_of(now() - HOUR, now() - HOUR)
    start = first_offset(source, now() + HOUR, None)
    assert next_offset(source, start, source.settled(), None) == start
    with pytest.raises(LogError, match="which is in the future"):
        next_offset(source, replace(start, until=start.until + SECOND), source.settled(), None)


def test_rows_from_before_the_last_alteration_of_the_table_may_be_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may have raised the log's TTL, and no one was there to see that."""
    created, altered = now() - 100 * HOUR, now() - HOUR
    for start in (None, now() - 20 * HOUR):
        caplog.clear()
        assert first_offset(source_of(created, created, altered=altered), start, None).whole_since == altered
        assert "if that raised the ttl of its log, some earlier rows may have expired" in caplog.text
    caplog.clear()
    unaltered = first_offset(source_of(created, created, altered=created + SECOND), None, None)
    later = first_offset(source_of(created, created, altered=altered), altered + SECOND, None)
    new = first_offset(source_of(altered, created, altered=altered), None, None)
    assert [found.whole_since - found.since for found in (unaltered, later, new)] == [0, 0, 0]
    assert "some earlier rows" not in caplog.text
