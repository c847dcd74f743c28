"""Row events in Kafka: each once, in order, after any kill of the publisher; read by another library."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import orjson
import pytest
from confluent_kafka import Producer

from tests.support.commands import run
from tests.support.event_replay import events as stream_of
from tests.support.event_replay import replayed
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.made import add, cell, write
from tests.support.messages import decoded, messages
from writetime.clients.database import connect
from writetime.clients.kafka import delete_topics, end_offsets, ensure_topics, next_offsets
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake import views
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.row_events import packing, publish, stream
from writetime.row_events.messages import event_avro
from writetime.row_events.trimming import merge_events
from writetime.schema.cql import parse_table
from writetime.schema.fingerprints import fingerprint, single_object_header
from writetime.schema.system import read_schema
from writetime.schema.table import DroppedColumn
from writetime.schema.types import Native
from writetime.wire.publishing import SchemaTopic, Sender
from writetime.wire.topic_names import row_events_topic

pytestmark = pytest.mark.long

# For each line that it reads, it publishes in a separate process, which is killed at that call; it prints how that
# ended.
# Events are published in parts of so many.
FIVE = publish.PartLimits(events=5)
KILLED = """
import os, sys
import pyarrow
from writetime.core import config
from writetime.lake.table import open_table
from writetime.row_events import publish
from writetime.storage.kernel.primitives import token

pyarrow.set_cpu_count(1)
# The first call of compiled code loads its libraries, which takes longer than the work of a child process.
token(b"")
publish.TRANSACTION_EVENTS = 20
calls, last = 0, 0

def count_and_die(function):
    def call(*arguments):
        global calls
        calls += 1
        if calls == last:
            os.kill(os.getpid(), 9)
        return function(*arguments)
    return call

publish.EventPublisher.do = count_and_die(publish.EventPublisher.do)
publish.EventPublisher.produce = count_and_die(publish.EventPublisher.produce)
for line in sys.stdin:
    last = int(line)
    pid = os.fork()
    if not pid:
        settings, limits = config.load(), publish.PartLimits(events=7)
        with publish.EventPublisher(settings, sys.argv[1], limits=limits) as publisher:
            publisher.publish(open_table(settings, sys.argv[1]))
        os._exit(0)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


@contextmanager
def killed_publisher(folder: Path, table: str) -> Iterator[Callable[[int], int]]:
    """Yield what publishes a table and is killed at a call; it returns how that process ended. The imports, which take
    a second, are made once.
    """
    script = folder / "killed.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), table]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        requests, answers = program.stdin, program.stdout
        assert requests is not None
        assert answers is not None

        def killed_at(calls: int) -> int:
            print(calls, file=requests, flush=True)
            return int(answers.readline())

        yield killed_at


def assert_schemas_are_readable(settings: Settings) -> None:
    """A schema that is registered now is read at once: no open transaction hides it."""
    sender = Sender(settings, "a schema")
    avro = {"type": "record", "name": f"r{time.time_ns()}", "namespace": "test", "fields": []}
    sender.register("other", avro, "BACKWARD_TRANSITIVE")
    assert sender.flush()
    assert SchemaTopic(settings).get(fingerprint(avro)) == avro


def test_a_failed_publisher_hides_no_schema(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic of the schemas is shared: a table that cannot be published stops no other table."""
    monkeypatch.setattr(publish, "MAX_MESSAGE_BYTES", 2000)
    table = create_table(settings, parse_table("CREATE TABLE shop.void (id int, n int, v text, PRIMARY KEY (id, n))"))
    add(table, [write(1, 1, 5, v="a" * 3000)], 1, table.schema())
    stream.extend(table)
    # The broker would end a transaction after its timeout. Here there is no transaction, even before that.
    with pytest.raises(WritetimeError, match="takes 2,000"):
        publish.publish(settings, table)
    assert_schemas_are_readable(settings)


@pytest.mark.parametrize("before", [0, 1])
def test_a_row_without_a_required_key_column(settings: Settings, before: int) -> None:
    """Its events have a schema with nullable keys; those of other rows keep the schema with required keys."""
    made = parse_table(f"CREATE TABLE shop.odd_{before} (id int, n int, v text, PRIMARY KEY (id, n))")
    table = create_table(settings, made)
    add(table, [write(1, 1, 5, v="a")], 1, made)
    stream.extend(table)
    if before:
        assert publish.publish(settings, table) == 1
    odd = {**write(2, 1, 6, v="a"), "n": None}
    gone = {**write(2, 1, 7), "n": None, "marker": None, "tombstone": {"write_time": 7, "deletion_time": 1}}
    for number, row in enumerate((odd, gone), 2):
        add(table, [row, write(3, 1, number, v=str(number))], number, made)
        assert stream.extend(table) == 2
        assert publish.publish(settings, table) == 2 + (number == 2 and not before)
    topic = row_events_topic(table.name)
    found = {(e["kind"], row["id"], row["n"]) for e in decoded(settings, topic) for row in [e["after"] or e["before"]]}
    assert found == {("CREATE", 1, 1), ("CREATE", 2, None), ("DELETE", 2, None), ("CREATE", 3, 1), ("UPDATE", 3, 1)}
    headers = Counter(value[:10] for _, _, value in messages(settings, topic))
    assert headers == {
        single_object_header(event_avro(made, null_keys=null_keys)): 2 if null_keys else 3
        for null_keys in (False, True)
    }


def test_events_from_before_the_last_static_column_was_dropped(settings: Settings) -> None:
    """A partition with static cells and no row has an event without clustering columns."""
    made = parse_table("CREATE TABLE shop.statics (id int, n int, s int STATIC, v text, PRIMARY KEY (id, n))")
    table = create_table(settings, made)
    alone = {**write(2, 1, 5), "kind": "static", "n": None, "position": b"", "marker": None, "s": cell(1, 5)}
    add(table, [write(1, 1, 5, v="a"), alone], 1, made)
    assert stream.extend(table) == 2
    # ScyllaDB does not record that the column was static.
    table.follow(replace(made, static=(), dropped=(DroppedColumn("s", Native("int"), None, 9),)))
    assert stream.extend(table) == 1
    assert publish.publish(settings, table) == 3
    found = [(e["kind"], (e["after"] or e["before"])["n"]) for e in decoded(settings, row_events_topic(table.name))]
    assert sorted(found, key=str) == [("CREATE", 1), ("CREATE", None), ("DELETE", None)]


def test_each_event_once_although_the_publisher_is_killed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests publish to the topic of `shop.items`.
    made = parse_table("CREATE TABLE shop.killed (id int, n int, v text, PRIMARY KEY (id, n))")
    table = create_table(settings, made)
    for number in range(3):
        add(table, [write(i, 1, number, v=str(number)) for i in range(number, 40)], number, made)
        stream.extend(table)
    topic = row_events_topic(table.name)
    with killed_publisher(tmp_path, table.name) as killed_at:
        for calls in (3, 15, 25, 26, 27, 60):
            assert killed_at(calls) == signal.SIGKILL
            assert_schemas_are_readable(settings)
            if calls == 26:
                # Its place is now within a file of all batches.
                monkeypatch.setattr(packing, "FAN", 2)
                monkeypatch.setattr(packing, "SIZE_CLASSES", (1 << 20,))
                assert packing.pack_events(table) > 3
                assert len(table.row_events.load().files) == 1
    assert 0 < publish.publish(settings, table) < 40 + 39 + 38
    assert publish.publish(settings, table) == 0
    events = decoded(settings, topic)
    wanted = [row for part in stream_of(table) for row in part.to_pylist()]
    assert sorted(e["event_id"] for e in events) == sorted(e["event_id"] for e in wanted)
    assert len({e["event_id"] for e in events}) == 40 + 39 + 38
    last: dict[bytes, int] = {}
    for event in events:
        assert last.get(event["key"], 0) < event["sequence"]
        last[event["key"]] = event["sequence"]
    # A key's events are all in one partition, and the partitions are ranges of tokens.
    ranges = sorted((e["partition"], e["token"]) for e in events)
    assert ranges == sorted(ranges, key=lambda r: r[1])


@pytest.fixture
def in_parts(settings: Settings) -> LakeTable:
    """A table with one batch of 12 events."""
    made = parse_table(f"CREATE TABLE {settings.cassandra.keyspace}.parts (id int, n int, v text, PRIMARY KEY (id, n))")
    table = create_table(settings, made)
    add(table, [write(i, 1, 1, v="a") for i in range(12)], 1, made)
    stream.extend(table)
    return table


def test_a_publisher_that_ends_within_a_batch_loses_no_event(settings: Settings, in_parts: LakeTable) -> None:
    table = in_parts
    with publish.EventPublisher(settings, table.name, limits=FIVE) as publisher:
        count = publisher.publish(table, 1)
    assert 0 < count < 12
    assert publish.not_published(table) == 12
    assert publish.publish(settings, table) == 12 - count
    assert publish.not_published(table) == 0


def test_a_publisher_that_continues_records_the_published_events(
    settings: Settings, in_parts: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once when it has caught up, otherwise later, although no more changes arrive."""
    table = in_parts
    with publish.EventPublisher(settings, table.name, limits=FIVE) as publisher:
        while publisher.publish(table, 1) and publisher.has_more:
            pass
        assert publish.not_published(table) == 0
        add(table, [write(100, 1, 2, v="b")], 2, table.schema())
        stream.extend(table)
        assert publisher.publish(table) == 1
        assert (publish.not_published(table), publisher.is_record_due) == (1, False)
        monkeypatch.setattr(publish, "RECORD_SECONDS", 0.0)
        assert publisher.is_record_due
        assert publisher.publish(table) == 0
        assert (publish.not_published(table), publisher.is_record_due) == (0, False)


@pytest.mark.parametrize("most", [1, 6, 12])
def test_the_last_batch_is_recorded_also_if_earlier_calls_recorded_theirs(
    settings: Settings, in_parts: LakeTable, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Wherever calls end, such as exactly at the last event."""
    monkeypatch.setattr(publish, "RECORD_SECONDS", 0.0)
    publisher = publish.EventPublisher(settings, in_parts.name, limits=FIVE)
    publisher.publish(in_parts, most)
    while publisher.has_more:
        publisher.publish(in_parts, most)
    assert publish.not_published(in_parts) == 0


def test_a_publisher_records_what_one_that_was_killed_did_not(settings: Settings, in_parts: LakeTable) -> None:
    """Kafka has the events and the position, and nothing more comes."""
    killed = publish.EventPublisher(settings, in_parts.name)
    assert killed.publish(in_parts) == 12
    assert publish.not_published(in_parts) == 12
    assert publish.publish(settings, in_parts) == 0
    assert publish.not_published(in_parts) == 0


def test_batches_that_a_new_topic_lacks_are_not_merged(settings: Settings, in_parts: LakeTable) -> None:
    """Its publisher, if it ends within them, goes on where it was, and a merge would have taken what comes next."""
    table = in_parts
    for number in (2, 3):
        add(table, [write(i, 1, number, v=str(number)) for i in range(12)], number, table.schema())
        stream.extend(table)
    assert publish.publish(settings, table) == 36
    delete_topics(settings, [row_events_topic(table.name)])
    with publish.EventPublisher(settings, table.name, "all", FIVE) as publisher:
        count = publisher.publish(table, 13)
    assert 12 < count < 24
    assert publish.not_published(table) == 24
    merge_events(table, views.time_now())
    assert publish.publish(settings, table) == 36 - count
    assert {e["after"]["v"] for e in decoded(settings, row_events_topic(table.name))} == {"a", "2", "3"}
    assert merge_events(table, views.time_now()) == 24


def test_a_topic_that_is_replaced_while_its_publisher_runs(settings: Settings, in_parts: LakeTable) -> None:
    """Its earlier events are not in the new topic, which an operator decides about."""
    table, topic = in_parts, row_events_topic(in_parts.name)
    assert publish.publish(settings, table) == 12
    publisher = publish.EventPublisher(settings, table.name)
    assert publisher.publish(table) == 0
    delete_topics(settings, [topic])
    ensure_topics(settings, {topic: {}}, 2)
    add(table, [write(i, 1, 2, v="2") for i in range(12)], 2, table.schema())
    stream.extend(table)
    with pytest.raises(WritetimeError, match=f"{topic} is not the one that group writetime-{topic} has read"):
        publisher.publish(table)
    with pytest.raises(WritetimeError, match=f"{topic} is not the topic that has the events up to batch 1"):
        publish.publish(settings, table)
    assert publish.publish(settings, table, "all") == 24
    assert len(decoded(settings, topic)) == 24


def test_from_the_database_to_kafka(settings: Settings) -> None:
    table = f"{settings.cassandra.keyspace}.prices"
    with connect(settings) as session:
        session.execute(
            f"CREATE TABLE {table} (shop int, id int, price decimal, tags set<text>, owner text STATIC, "
            "PRIMARY KEY (shop, id))"
        )
        for shop in range(5):
            for n in range(3):
                session.execute(f"INSERT INTO {table} (shop, id, price, tags) VALUES ({shop}, {n}, 1.50, {{'a'}})")
        run("backfill", table, *run("snapshot", table).split())
        assert "15 events added" in run("publish", table)
        session.execute(f"UPDATE {table} SET owner = 'x' WHERE shop = 1")
        session.execute(f"DELETE FROM {table} WHERE shop = 2")
        session.execute(f"DELETE FROM {table} WHERE shop = 3 AND id >= 1")
        session.execute(f"UPDATE {table} SET owner = 'alone' WHERE shop = 9")
        session.execute(f"INSERT INTO {table} (shop, id, price, tags) VALUES (4, 0, 1.50, {{'a'}})")
        session.execute(f"INSERT INTO {table} (shop, id, price) VALUES (4, 1, 1.5)")
        run("backfill", table, *run("snapshot", table).split())
        printed = run("publish", table)
        # Three of a static column, three of a partition, two of a range, a static row of its own, and the form of 1.5.
        assert "10 events added" in printed
        assert "10 events published" in printed
        wanted = cql_rows(session, read_schema(session, table))
    lake = open_table(settings, table)
    assert replayed(lake) == wanted == view_rows(views.virtual(lake))
    events = decoded(settings, row_events_topic(table))
    assert len(events) == 25
    lines = [orjson.loads(line) for line in run("row-events", table).splitlines()]
    assert sorted(e["event_id"] for e in events) == sorted(line["event_id"] for line in lines)
    assert len(run("row-events", table, "--from", "2").splitlines()) == 10
    (alone,) = [line for line in lines if line["after"] and line["after"]["shop"] == 9]
    assert (alone["kind"], alone["after"]["id"], alone["after"]["owner"]) == ("CREATE", None, "alone")
    (price,) = [line for line in lines if line["sequence"] == 2 and line["after"] and line["after"]["shop"] == 4]
    assert (price["before"]["price"], price["after"]["price"]) == ("1.50", "1.5")
    assert "UPDATE" in run("row-events", table, "--format", "table")
    assert json.loads(run("row-events", table, "--format", "avsc"))["name"] == "event"


def test_messages_of_an_open_transaction_are_before_the_next_offset(settings: Settings) -> None:
    """A committed one may not be readable yet; the asset must not count its events as those of a later run."""
    topic = f"open{uuid4().hex}"
    ensure_topics(settings, {topic: {}}, 1)
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"event")
    assert producer.flush(60) == 0
    assert (end_offsets(settings, topic), next_offsets(settings, topic)) == ({0: 0}, {0: 1})
    producer.abort_transaction(60)


def test_events_before_the_start_that_become_readable_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter([{0: 5}, {0: 9}, {0: 11}, {0: 12}])
    monkeypatch.setattr(publish, "end_offsets", lambda *_: next(ends))

    def between(_settings: Settings, _topic: str, begins: dict[int, int], until: dict[int, int]) -> list[Any]:
        return [SimpleNamespace(value=lambda: b"event") for _ in range(begins[0], until[0])]

    monkeypatch.setattr(publish, "messages_between", between)
    assert publish.published_since(config.load(), "shop.items", {0: 10}, 2) == 2
