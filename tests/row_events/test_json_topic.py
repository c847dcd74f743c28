"""Row events as JSON in Kafka: each once, by the row's key, in the partition of its bucket, with tombstones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import without_database
from tests.support.made import add, write
from tests.support.messages import messages
from writetime.clients.kafka import delete_topics
from writetime.core.config import Settings
from writetime.delta.buckets import buckets_of, partition_of_bucket
from writetime.lake.table import LakeTable, create_table
from writetime.lake.views import time_now
from writetime.row_events import publish, stream
from writetime.row_events.stream_files import events_since
from writetime.row_events.trimming import merge_events
from writetime.schema.cql import parse_table
from writetime.wire.topic_names import row_events_topic

# Events are published in parts of so many.
FIVE = publish.PartLimits(events=5)


@pytest.fixture
def settings(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return without_database(kafka, tmp_path, monkeypatch)


def with_format(settings: Settings, **row_events: Any) -> Settings:
    """The same installation, with other messages."""
    return settings.model_copy(update={"row_events": settings.row_events.model_copy(update=row_events)})


def history(settings: Settings, name: str) -> LakeTable:
    """Rows that are read, created, changed and deleted."""
    schema = parse_table(f"CREATE TABLE shop.{name} (id int, n int, v text, w int, PRIMARY KEY (id, n))")
    table = create_table(settings, schema)
    add(table, [write(i, n, 1, v="a") for i in range(6) for n in range(2)], 1, schema)
    stream.extend(table)
    gone = write(1, 1, 2) | {"marker": None, "tombstone": {"write_time": 2, "deletion_time": 1}}
    add(table, [write(9, 1, 2, v="b"), write(0, 0, 2, v="c"), gone], 2, schema)
    stream.extend(table)
    return table


def test_the_last_message_of_each_key_is_the_row(settings: Settings) -> None:
    chosen = with_format(settings, format="debezium", json_schemas=False, tombstones=True)
    table = history(chosen, "compacted")
    with publish.EventPublisher(chosen, table.name, limits=FIVE) as publisher:
        count = publisher.publish(table, 1)
    # Another one continues where it ended.
    assert 0 < count < 15
    assert publish.publish(chosen, table) == 15 - count
    assert publish.published_since(chosen, table.name, {}, 15) == 15
    found = messages(chosen, row_events_topic(table.name))
    assert len(found) == 16
    values = [json.loads(value) for _, _, value in found if value]
    assert [v["op"] for v in values if v["source"]["batch"] == 1] == ["r"] * 12
    assert sorted(v["op"] for v in values if v["source"]["batch"] == 2) == ["c", "d", "u"]
    assert all(v["source"]["ts_us"] == v["source"]["batch"] for v in values)
    last = {key: value for _, key, value in found}
    assert last.pop(b'{"id":1,"n":1}') is None
    rows = {key: json.loads(value)["after"] for key, value in last.items()}
    assert rows[b'{"id":0,"n":0}'] == {"id": 0, "n": 0, "v": "c", "w": None}
    assert len(rows) == 12
    assert all(json.loads(key).items() <= row.items() for key, row in rows.items())
    assert {(json.loads(key)["id"], partition) for partition, key, _ in found} == partitions(table)


def merged(settings: Settings, name: str) -> LakeTable:
    """A table whose three published batches are merged, and that has no topic."""
    table = history(settings, name)
    add(table, [write(i, 0, 3, v="d") for i in range(2, 5)], 3, table.schema())
    stream.extend(table)
    publish.publish(settings, table)
    delete_topics(settings, [row_events_topic(table.name)])
    assert merge_events(table, time_now()) == 6
    return table


@pytest.mark.parametrize("format_", ["debezium", "flat"])
def test_each_event_of_a_merged_base_has_its_own_batch(settings: Settings, format_: str) -> None:
    chosen = with_format(settings, format=format_, json_schemas=False)
    table = merged(chosen, f"base_{format_}")
    assert publish.publish(chosen, table, "all") == 12
    (base,) = events_since(table, 1)
    wanted = dict(zip(base["event_id"].to_pylist(), base["sequence"].to_pylist(), strict=True))
    values = [json.loads(value) for _, _, value in messages(chosen, row_events_topic(table.name))]
    if format_ == "debezium":
        sources = [v["source"] for v in values]
        assert all(json.loads(s["sequence"]) == [str(s["generation"]), str(s["batch"])] for s in sources)
        assert {(v["op"], v["source"]["snapshot"]) for v in values} == {("r", "true")}
    else:
        sources = [{name: v[f"__source_{name}"] for name in ("batch", "event_id")} for v in values]
    assert {s["event_id"]: s["batch"] for s in sources} == wanted
    assert set(wanted.values()) == {1, 2, 3}


def test_each_event_of_a_base_once(settings: Settings) -> None:
    """Also if a publisher ends within it, and if there is nothing behind it."""
    chosen = with_format(settings, format="debezium", json_schemas=False)
    table = merged(chosen, "base_once")
    with publish.EventPublisher(chosen, table.name, "all", FIVE) as publisher:
        count = publisher.publish(table, 1)
    assert 0 < count < 12
    with publish.EventPublisher(chosen, table.name, limits=FIVE) as publisher:
        assert publisher.publish(table) == 12 - count
        assert publisher.publish(table) == 0
    assert publish.publish(chosen, table) == 0
    add(table, [write(9, 1, 4, v="e")], 4, table.schema())
    stream.extend(table)
    assert publish.publish(chosen, table) == 1
    values = [json.loads(value)["source"] for _, _, value in messages(chosen, row_events_topic(table.name))]
    assert len({v["event_id"] for v in values}) == len(values) == 13


def partitions(table: LakeTable) -> set[tuple[int, int]]:
    """The partition of Kafka that each partition key has by its token."""
    found = set()
    for part in events_since(table, 1):
        numbers = partition_of_bucket(buckets_of(part["token"], table.buckets), table.buckets, 4).tolist()
        rows = zip(part["before"].to_pylist(), part["after"].to_pylist(), strict=True)
        found |= {((after or before)["id"], number) for (before, after), number in zip(rows, numbers, strict=True)}
    return found


def test_a_rebuilt_stream_reads_its_rows(settings: Settings) -> None:
    chosen = with_format(settings, format="flat")
    table = history(chosen, "again")
    publish.publish(chosen, table)
    stream.extend(table, rebuild=True)
    assert publish.publish(chosen, table) == 12
    rows = [json.loads(value)["payload"] for _, _, value in messages(chosen, row_events_topic(table.name))]
    ops: Callable[[int], list[str]] = lambda batch: [r["__op"] for r in rows if r["__source_batch"] == batch]  # noqa: E731
    assert ops(3) == ["r"] * 12
    # Those of the first batch are out of it by then.
    assert sorted(ops(2)) == ["c", "d", "u"]
    (gone,) = [r for r in rows if r["__deleted"] == "true"]
    assert (gone["id"], gone["n"], gone["v"]) == (1, 1, "a")
