"""The steps of an agent of logs: lasting faults repeat nothing, and tables take turns."""

import random
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.scylla_cdc.agents import reached, settings_for, source_of, wait_until
from tests.scylla_cdc.conftest import Logged, Written
from tests.scylla_cdc.databases import SECOND, CdcDatabase, StreamSet, now, stream_set
from tests.scylla_cdc.examples import LATE
from tests.scylla_cdc.odd import STREAM, Odd
from tests.scylla_cdc.writer import Group
from tests.support.programs import PACE, agent
from tests.support.topics import alter_topic
from tests.support.waiting import wait_for
from writetime.capture import scylla_agent
from writetime.capture.metrics import read_status
from writetime.clients.kafka import end_offsets, ensure_topics
from writetime.core.config import Settings
from writetime.scylla_cdc.pieces import StreamPiece
from writetime.scylla_cdc.source import CdcSource
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import SourceMarks

pytestmark = pytest.mark.long

ROWS = 20
# How far a log is behind.
BEHIND_SECONDS = 30


def published(settings: Settings, table: str) -> int:
    """How many messages the topic of a table has."""
    return sum(end_offsets(settings, changes_topic(table)).values())


def odd_log(cdc: CdcDatabase, bad: dict[str, Any]) -> tuple[Odd, Logged]:
    """A log of some rows each second, with a bad row in the middle of those of second 15."""
    odd = Odd(cdc, "p int, c int, v blob, PRIMARY KEY (p, c)")
    row = {"operation": 1, "p": 1, "v": b"v"}
    for second in range(1, 21):
        for i in range(2):
            odd.log(second, *({**row, "c": c} for c in range(ROWS // 2)), random=2 * i)
    odd.log(15, {**row, "c": 0, **bad}, random=1)
    return odd, Logged(odd.current(), [], [StreamSet(odd.start, (STREAM,))], [])


@pytest.mark.parametrize(
    ("bad", "reason"), [({"v": bytes(200_000)}, "max.message.bytes"), ({"operation": 10}, "has the operation 10")]
)
def test_a_fault_that_lasts_repeats_nothing(
    cdc: CdcDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: dict[str, Any], reason: str
) -> None:
    """Changes from before the fault are published at most once more; the position is saved up to the bad window."""
    monkeypatch.setattr("writetime.scylla_cdc.pages.PAGE_ROWS", ROWS // 4)
    monkeypatch.setattr("writetime.scylla_cdc.pieces.BATCH_ROWS", ROWS // 4)
    odd, table = odd_log(cdc, bad)
    settings = settings_for(cdc, tmp_path, table, window_seconds=1)
    topic = changes_topic(odd.name)
    ensure_topics(settings, {topic: {"max.message.bytes": "150000"}}, 2)
    retries: list[float] = []
    advance = scylla_agent.LogAgent.advance

    def count(*arguments: Any) -> None:
        retries.append(time.monotonic())
        advance(*arguments)

    monkeypatch.setattr(scylla_agent.LogAgent, "advance", count)
    with agent(settings):
        wait_for(lambda: reached(settings).get(odd.name, 0) > odd.start + 14 * SECOND)
        wait_for(lambda: reason in ((read_status(settings.capture.state_dir) or {})["logs"][odd.name]["fault"] or ""))
        before, done = published(settings, odd.name), len(retries)
        assert 14 * ROWS <= before <= 31 * ROWS
        wait_for(lambda: len(retries) >= done + 3)
        # The pauses grow.
        assert retries[-1] - retries[-3] >= 4 * PACE.pause
        assert published(settings, odd.name) == before
        assert reached(settings)[odd.name] <= odd.start + 15 * SECOND
        if "v" not in bad:
            return
        alter_topic(settings, topic, {"max.message.bytes": "1000000"})
        wait_until(settings, table, odd.start + 21 * SECOND)
        assert published(settings, odd.name) == before + 6 * ROWS + 1


def test_a_table_that_is_behind_does_not_stop_the_others(
    cdc: CdcDatabase, late: Logged, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is read a few windows at a time, and the other table is read in between."""
    monkeypatch.setattr(scylla_agent, "PORTION", 10)
    other = Logged(cdc.create(replace(LATE, name=f"other{time.time_ns()}")), written.groups[LATE.name], [], [])
    start = now() - BEHIND_SECONDS * SECOND
    for table, begin in ((late, start), (other, now() - SECOND)):
        table.sets = [stream_set(random.Random(1), begin, [0, (1 << 63) - 1])]
        cdc.announce_tablets(table.schema, table.sets)
    data = struct.pack(">i", 1)
    rows: list[dict[str, bytes | None]] = [{"operation": b"\x02", "ttl": None, "p": data, "v": data}]
    times = [start + i * SECOND // 4 for i in range(1, 4 * (BEHIND_SECONDS - 10))]
    late.origins = cdc.log(late.schema, [Group(data, at, rows) for at in times], late.sets)
    settings = settings_for(cdc, tmp_path, late, other, window_seconds=0.5)
    # In their order: each read of the first log's rows, as zero, and each watermark of the other table.
    told: list[int] = []
    read, mark = CdcSource.read, scylla_agent.ChangePublisher.mark

    def slowly(source: CdcSource, pieces: Sequence[StreamPiece], **options: Any) -> Iterator[pa.RecordBatch]:
        if source.name == late.schema.full_name:
            told.extend(0 for piece in pieces[:1] if piece.start < times[-1])
            time.sleep(max((piece.end - piece.start for piece in pieces), default=0) / SECOND / 3)
        yield from read(source, pieces, **options)

    def marked(this: scylla_agent.ChangePublisher, source: str, marks: SourceMarks) -> None:
        if source == source_of(other):
            told.append(marks.tables[other.schema.full_name].until)
        mark(this, source, marks)

    monkeypatch.setattr(CdcSource, "read", slowly)
    monkeypatch.setattr(scylla_agent.ChangePublisher, "mark", marked)
    with agent(settings):
        wait_until(settings, late, times[-1] + SECOND)
        wait_until(settings, other, now())
    # Again and again, while the first one is behind.
    reads = [place for place, until in enumerate(told) if not until]
    assert len({*told[reads[0] : reads[-1]]} - {0}) >= 3
    # A step that was too large is read again, and published once.
    assert published(settings, late.schema.full_name) == len(late.origins)
