"""Row events of large rows: published like all others, in bounded parts, or refused with the remedy."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.broker import without_database
from tests.support.made import SCHEMA, add, new_table, write
from tests.support.messages import messages
from tests.support.topics import alter_topic
from writetime.clients.kafka import ensure_topics
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake.table import LakeTable, create_table
from writetime.row_events import publish, stream
from writetime.row_events.publish import PartLimits, Reached, _parts
from writetime.schema.cql import parse_table
from writetime.wire.topic_names import row_events_topic

LARGE = 700_000


@pytest.fixture
def settings(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return without_database(kafka, tmp_path, monkeypatch)


def updated(settings: Settings, name: str) -> LakeTable:
    """A table with a large row that was updated, and a small one."""
    schema = parse_table(f"CREATE TABLE shop.{name} (id int, n int, v blob, PRIMARY KEY (id, n))")
    table = create_table(settings, schema)
    for at in (1, 2):
        add(table, [write(1, 2, at, v=os.urandom(LARGE)), write(2, 2, at, v=b"%d" % at)], at, schema)
        stream.extend(table)
    return table


@pytest.mark.parametrize("format_", ["avro", "debezium", "flat"])
def test_an_event_of_a_large_row_is_published(settings: Settings, format_: str) -> None:
    """An UPDATE has both images, and JSON has bytes as base64."""
    own = settings.row_events.model_copy(update={"format": format_})
    chosen = settings.model_copy(update={"row_events": own})
    table = updated(chosen, f"large_{format_}")
    assert publish.publish(chosen, table) == 4
    sizes = [len(value) for _, _, value in messages(chosen, row_events_topic(table.name))]
    images = {"avro": 2, "debezium": 2 * 4 / 3, "flat": 4 / 3}[format_]
    assert max(sizes) > images * LARGE
    assert sum(size < 10_000 for size in sizes) == 2


def test_a_topic_that_takes_only_small_messages(settings: Settings) -> None:
    """As earlier releases created it. A publisher that runs notices that its limit was raised."""
    schema = parse_table("CREATE TABLE shop.small_topic (id int, n int, v blob, PRIMARY KEY (id, n))")
    table = create_table(settings, schema)
    topic = row_events_topic(table.name)
    ensure_topics(settings, {topic: {"max.message.bytes": "1000000"}}, 1)
    add(table, [write(1, 2, 1, v=b"small")], 1, schema)
    stream.extend(table)
    with publish.EventPublisher(settings, table.name) as publisher:
        assert publisher.publish(table) == 1
        add(table, [write(1, 2, 2, v=os.urandom(2 * LARGE))], 2, schema)
        stream.extend(table)
        alter_topic(settings, topic, {"max.message.bytes": "2000000"})
        assert publisher.publish(table) == 1
    add(table, [write(1, 2, 3, v=os.urandom(2 * LARGE))], 3, schema)
    stream.extend(table)
    wanted = rf'shop.small_topic: the event of the row {{"id":1,"n":2}} is a message of 2,8.*--entity-name {topic} '
    with pytest.raises(WritetimeError, match=wanted):
        publish.publish(settings, table)


def test_an_event_that_no_topic_takes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the row, a stream that begins again is published."""
    monkeypatch.setattr(publish, "MAX_MESSAGE_BYTES", 1_000_000)
    table = updated(settings, "no_topic")
    with pytest.raises(
        WritetimeError, match=r"delete it, and when .* run `writetime rebuild shop\.no_topic row_events`"
    ):
        publish.publish(settings, table)
    gone: dict[str, Any] = {"marker": None, "tombstone": {"write_time": 3, "deletion_time": 1}}
    add(table, [write(1, 2, 3) | gone], 3, table.schema())
    assert stream.extend(table, rebuild=True) == 1
    assert publish.publish(settings, table) == 1


def test_parts_are_bounded_in_bytes(tmp_path: Path) -> None:
    """Also where large rows follow many small ones."""
    schema = parse_table("CREATE TABLE shop.parts (id int, n int, v blob, PRIMARY KEY (id, n))")
    table = new_table(tmp_path, schema)
    sizes = [10] * 500 + [40_000] * 9 + [300_000]
    add(table, [write(1, n, 1, v=bytes(size)) for n, size in enumerate(sizes)], 1, schema)
    stream.extend(table)
    version = table.row_events.load()
    for start, left in ((Reached(0, 0), 510), (Reached(1, 507), 3)):
        found = list(_parts(version, table.row_events.storage, schema, start, PartLimits(size=100_000)))
        assert sum(part.num_rows for _, part in found) == left
        assert all(part.nbytes <= 100_000 or part.num_rows == 1 for _, part in found)
        assert found[-1][0] == Reached(1, 510)


def test_reads_are_bounded_in_bytes_where_long_values_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    add(table, [write(1, n, 1, v="x" * 10_000) for n in range(500)], 1)
    stream.extend(table)
    read = []
    by_batch = publish._by_batch

    def noted(events: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        read.append(events.nbytes)
        return by_batch(events)

    monkeypatch.setattr(publish, "_by_batch", noted)
    version, limits = table.row_events.load(), PartLimits(size=200_000)
    found = list(_parts(version, table.row_events.storage, SCHEMA, Reached(0, 0), limits))
    assert sum(part.num_rows for _, part in found) == 500
    assert max(read) < 250_000
    assert len(read) > 20
