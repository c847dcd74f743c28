"""The advance of a stream: windows, changing sets of streams, late writes, and rows that the log no longer has."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from uuid import UUID

import pytest

from tests.scylla_cdc.conftest import Logged, Written
from tests.scylla_cdc.databases import SECOND, CdcDatabase, StreamSet, now, stream_set
from tests.scylla_cdc.logs import origins
from writetime.core.instants import UUID_EPOCH
from writetime.scylla_cdc.late_rows import LateRows, LateStep
from writetime.scylla_cdc.log import LogError, LogGap
from writetime.scylla_cdc.offsets import (
    Offset,
    first_offset,
    interval,
    next_offset,
    pieces_between,
    read_again,
    rescan_micros,
)
from writetime.scylla_cdc.source import CdcSource, open_source
from writetime.scylla_cdc.streams import StreamSets

pytestmark = pytest.mark.long


def read(source: CdcSource, start: Offset, end: Offset) -> Counter[str]:
    batches = source.read(pieces_between(source, start, end), ["origin"])
    return Counter(o for batch in batches for o in origins(batch))


def after(table: Logged) -> int:
    """A time at which the window of a table's last write is over; its writes may have been only seconds ago."""
    return max(group.time for group in table.groups) + 31 * SECOND


def windows(source: CdcSource, offset: Offset, until: int) -> Iterator[tuple[Offset, Counter[str]]]:
    """Continue reading, batch by batch; offsets pass through the form in a checkpoint."""
    while (end := Offset(**asdict(next_offset(source, offset, until, None)))) != offset:
        yield end, read(source, offset, end)
        offset = end


def test_windows_read_each_row_once(cdc: CdcDatabase, logged: list[Logged], monkeypatch: pytest.MonkeyPatch) -> None:
    r = random.Random(1)
    for table in logged:
        # Else the last windows may end in the future, which is refused.
        monkeypatch.setattr("writetime.scylla_cdc.offsets.now", partial(after, table))
        settings = cdc.with_options(
            window_seconds=r.choice([1.5, 7, 10]), batch_seconds=r.choice([10, 60]), streams_at_once=3
        )
        found: Counter[str] = Counter()
        with open_source(settings, table.schema.full_name) as source:
            start = first_offset(source, table.sets[0].time, None)
            for end, batch in windows(source, start, after(table)):
                assert batch == read(source, start, end)  # what a restart reads again
                found += batch
                start = end
        assert found == Counter(table.origins)


def test_a_page_may_end_anywhere(cdc: CdcDatabase, logged: list[Logged], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("writetime.scylla_cdc.pages.PAGE_ROWS", 1)
    table = max(logged, key=lambda t: max(len(group.rows) for group in t.groups))
    with open_source(cdc.settings, table.schema.full_name) as source:
        start = first_offset(source, table.sets[0].time, None)
        end = next_offset(source, start, after(table), None)
        assert read(source, start, end) == Counter(table.origins)


def test_a_set_that_is_published_late_is_read_from_its_beginning(
    cdc: CdcDatabase, late: Logged, written: Written
) -> None:
    cdc.announce_tablets(late.schema, late.sets[:1])
    wanted = cdc.log(late.schema, late.groups, late.sets)
    with open_source(cdc.with_options(window_seconds=1), late.schema.full_name) as source:
        start = first_offset(source, written.base, None)
        end = next_offset(source, start, written.base + 30 * SECOND, None)
        found = read(source, start, end)
    assert sum(found.values()) < len([g for g in late.groups if g.time < end.until])
    cdc.announce_tablets(late.schema, late.sets)
    with open_source(cdc.with_options(window_seconds=1), late.schema.full_name) as source:
        for _, batch in windows(source, end, written.base + 70 * SECOND):
            found += batch
    assert found == Counter(wanted)


def test_late_writes_are_found_by_looking_again(cdc: CdcDatabase, late: Logged, written: Written) -> None:
    cdc.announce_tablets(late.schema, late.sets)
    r = random.Random(3)
    r.shuffle(late.groups)
    in_time = cdc.log(late.schema, late.groups[:40], late.sets, 1)
    counted: dict[bool, Counter[str]] = {}
    late_rows: list[str] = []
    for again in (False, True):
        with open_source(
            cdc.with_options(window_seconds=5, rescan_seconds=60 if again else 0), late.schema.full_name
        ) as source:
            start = first_offset(source, written.base, None)
            middle = next_offset(source, start, written.base + 60 * SECOND, None)
            found = read(source, start, middle)
            late_rows = late_rows or cdc.log(late.schema, late.groups[40:], late.sets, 2)
            end = next_offset(source, middle, written.base + 120 * SECOND, None)
            counted[again] = found + read(source, middle, end)
    assert counted[False] == Counter(in_time)
    assert counted[True].keys() == {*in_time, *late_rows}
    assert max(counted[True].values()) == 2


def test_rows_in_streams_of_a_set_that_was_closed(cdc: CdcDatabase, late: Logged, written: Written) -> None:
    """They are read for as long as windows are read again, and counted: those found at once, and those found then."""
    cdc.announce_tablets(late.schema, late.sets)
    closed = late.sets[1].time
    old = [s for s in late.sets[0].streams if s not in late.sets[1].streams]
    assert old
    # Of the old set, though 20 seconds later the next one begins.
    in_old = [g for g in late.groups if late.sets[0].of(g.key) in old]
    at_once = [g for g in in_old if closed - 5 * SECOND <= g.time < closed + 25 * SECOND]
    r = random.Random(6)
    delayed = [g for g in at_once if r.random() < 0.5]
    at_once = [g for g in at_once if g not in delayed]
    others = [g for g in late.groups if g not in in_old and g.time < closed][::2]
    wanted = cdc.log(late.schema, [*at_once, *others], late.sets[:1], 1)
    settings = cdc.with_options(window_seconds=5, batch_seconds=5, rescan_seconds=29)
    found: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    rows = LateRows()
    with open_source(settings, late.schema.full_name) as source:
        start = first_offset(source, written.base - 20 * SECOND, None)
        delivered = False
        for end in steps(source, start, written.base + 120 * SECOND):
            if not delivered and start.until >= closed + 25 * SECOND:
                delivered = True
                wanted += cdc.log(late.schema, delayed, late.sets[:1], 2)
            step = LateStep(start.until, 5 * SECOND)
            pieces = pieces_between(source, start, end)
            batches = list(source.read(pieces, ["origin"], found=counts, late=step))
            found.update(o for batch in batches for o in origins(batch))
            counts += rows.finish(
                step, range(start.until, end.until, 5 * SECOND), read_again(source.settings, start, end)
            )
            start = end
        assert rescan_micros(source.settings) == 30 * SECOND  # whole windows
        # A batch reads them, too.
        batch = source.read(interval(source, closed, closed + 30 * SECOND, None), ["origin"])
        assert {o for b in batch for o in origins(b)} == set(cdc_origins(wanted, closed))
    assert found.keys() == set(wanted)
    assert max(found.values()) == 2
    assert counts == {"closed_set": len([g for g in at_once if g.time >= closed]) + len(delayed)}


def test_rows_beyond_the_setting_for_late_ones_are_missed(cdc: CdcDatabase, late: Logged, written: Written) -> None:
    cdc.announce_tablets(late.schema, late.sets)
    closed = late.sets[1].time
    old = [s for s in late.sets[0].streams if s not in late.sets[1].streams]
    group = next(g for g in late.groups if late.sets[0].of(g.key) in old)
    wanted: list[str] = []
    for second in (1, 9, 12, 19):
        wanted += cdc.log(late.schema, [replace(group, time=closed + second * SECOND)], late.sets[:1], second)
    for seconds, count in ((0, 1), (10, 2), (20, 4)):
        settings = cdc.with_options(window_seconds=5, batch_seconds=5, rescan_seconds=seconds)
        with open_source(settings, late.schema.full_name) as source:
            start = first_offset(source, closed - 3 * SECOND, None)
            found: Counter[str] = Counter()
            for end in steps(source, start, closed + 60 * SECOND):
                found += read(source, start, end)
                start = end
        assert found.keys() == set(wanted[:count])


def steps(source: CdcSource, start: Offset, until: int) -> Iterator[Offset]:
    while (end := next_offset(source, start, until, None)) != start:
        yield end
        start = end


def cdc_origins(found: list[str], since: int) -> list[str]:
    """Return the origins of rows with write times from a time on."""
    times = {o: (UUID(o.split("/")[1]).time - UUID_EPOCH) // 10 for o in found}
    return [o for o, time in times.items() if time >= since]


def test_a_stream_that_was_stopped_for_longer_than_the_log_keeps_rows(
    cdc: CdcDatabase, late: Logged, written: Written
) -> None:
    cdc.announce_tablets(late.schema, late.sets)
    start = written.base + 5 * SECOND
    with open_source(cdc.with_options(log_ttl_seconds=30, window_seconds=1), late.schema.full_name) as source:
        offset = Offset(start, late.sets[0].time, start, str(late.schema.id))
        before = now() - 30 * SECOND
        with pytest.raises(
            LogGap, match=r"the log keeps rows for 30 seconds. To close the gap, take a snapshot"
        ) as raised:
            next_offset(source, offset, source.settled(), None)
        assert raised.value.start == start
        assert before <= raised.value.end <= now()
        with pytest.raises(LogGap):
            first_offset(source, start, None)
        with pytest.raises(LogGap):
            next_offset(source, offset, source.settled(), before - SECOND)
        assert next_offset(source, offset, source.settled(), now()).until > start
        # Without `from`, the stream begins with the present rows that do not expire before they are read.
        assert first_offset(source, None, None).until >= before + 3 * SECOND
    with open_source(cdc.with_options(log_ttl_seconds=0), late.schema.full_name) as source:
        assert next_offset(source, offset, source.settled(), None).until > start
        with pytest.raises(LogGap, match="the streams of that time are no longer known"):
            first_offset(source, late.sets[0].time - 1, None)


def test_a_table_that_was_created_again(cdc: CdcDatabase, late: Logged, written: Written) -> None:
    cdc.announce_tablets(late.schema, late.sets)
    with open_source(cdc.settings, late.schema.full_name) as source:
        offset = Offset(written.base, late.sets[0].time, written.base, "another")
        with pytest.raises(LogError, match="dropped and created again"):
            next_offset(source, offset, now(), None)


def test_sets_that_are_not_complete(cdc: CdcDatabase, late: Logged) -> None:
    cdc.announce_tablets(late.schema, [StreamSet(late.sets[0].time, ())])
    incomplete = pytest.raises(LogError, match="cdc_streams has no streams of the set that begins at")
    with open_source(cdc.settings, late.schema.full_name) as source, incomplete:
        source.sets.pieces(now() - SECOND, now(), now(), now())
    settings = cdc.with_options(tablet_times="system.cdc_timestamps", generation_times="system.nothing")
    none = pytest.raises(LogError, match="the database has no CDC streams for")
    with none, open_source(settings, late.schema.full_name):
        pass


@pytest.mark.parametrize("late", [0, 1, 7, 30])
def test_pieces_begin_where_a_set_does(late: int) -> None:
    """Of sets, windows and what is known, made at random: each moment of each stream is read once, and of closed sets
    also what came late."""
    r = random.Random(4)
    for _ in range(300):
        sets = [stream_set(r, t, [r.randrange(-9, 9) for _ in range(3)]) for t in sorted(r.sample(range(100), 4))]
        kept = StreamSet(sets[2].time, (sets[1].streams[0], *sets[2].streams))
        sets[2] = kept
        _check_pieces(r, sets, late)


def _check_pieces(r: random.Random, sets: list[StreamSet], late: int) -> None:
    class Known:
        def __init__(self) -> None:
            self.times: list[int] = []
            self.streams = {s.time: s.streams for s in sets}.__getitem__

    ticks: Counter[tuple[bytes, int]] = Counter()
    at = known = sets[0].time
    ends = [*sorted(r.sample(range(at + 1, 121), 5)), 121]
    for end in ends:
        source = Known()
        # A set is published before it begins, or some time after.
        source.times = [s.time for s in sets if s.time < end and (s.time < end - 5 or r.random() < 0.5 or end == 121)]
        source.times = sorted({*source.times, *(s.time for s in sets if s.time <= known)})
        newest = max(source.times)
        for piece in StreamSets.pieces(source, at, end, known, newest, late):  # type: ignore[arg-type]
            ticks.update((piece.stream, t) for t in range(piece.start, piece.end))
            last = [i for i, s in enumerate(sets) if s.time <= newest and piece.stream in s.streams][-1]
            ends = {t for t in source.times if sets[last].time < t <= newest}
            assert piece.closed_at == min(ends, default=None)
        at, known = end, newest
    assert max(ticks.values()) == 1
    nexts = [*(s.time for s in sets[1:]), 121]
    wanted = {
        (stream, t)
        for s, after in zip(sets, nexts, strict=True)
        for stream in s.streams
        for t in range(s.time, min(after + late, 121))
    }
    assert wanted <= ticks.keys()
