"""A fault of a table, message or topic does not stop the landing of other tables."""

import errno
import json
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.capture.agents import count
from tests.support.disks import fill, small_disk
from tests.support.landing_once import look
from tests.support.published import Broken, command, hurry, produce, publish, published, reports, reports_of, schema_of
from tests.support.status import status_lines
from writetime.clients.kafka import TopicEnds, end_offsets, ends_of_topics, ensure_topics, messages_between
from writetime.core.config import Settings
from writetime.core.errors import Transient
from writetime.core.outages import is_outage
from writetime.lake.table import is_in_lake
from writetime.lake.views import time_now
from writetime.landing import following, schema_changes
from writetime.landing import reports as sending
from writetime.landing.following import LandedTables
from writetime.landing.landing import Landing
from writetime.landing.topics import captured_tables
from writetime.schema.fingerprints import fingerprint
from writetime.wire import publishing, watermarks
from writetime.wire.change_messages import change_avro
from writetime.wire.publishing import SCHEMAS_TOPIC, SchemaTopic, Sender
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import WatermarkTopic, ensure_watermarks_topic


@pytest.mark.parametrize(
    "error", [RuntimeError(f"{'a bug ' * 99}to report"), RecursionError("too deep"), KeyError("x"), MemoryError()]
)
def test_an_unknown_error_sets_its_table_aside(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    hurry(monkeypatch)
    first, second, third = published(settings, "a", "b", "c")
    broken = Broken(monkeypatch, second, error)
    tables = LandedTables(settings, [first, second, third])
    look(tables)
    assert (count(settings, first), count(settings, third)) == (3, 3)
    assert not is_in_lake(settings, second)
    assert reports_of(settings, second) == ("waiting", 1)
    for _ in range(3):
        look(tables)
    assert reports_of(settings, second) == ("set aside", 4)
    assert type(error).__name__ in str(reports(settings)[second].fault)
    # The new changes of other tables land, and the error is not logged at each attempt.
    publish(settings, schema_of(settings, "c"), 4)
    for _ in range(3):
        look(tables)
    assert count(settings, third) == 4
    assert sum(second in record.message for record in caplog.records if record.levelno == logging.ERROR) == 2
    failures = {table.name: table.failures for table in tables.wanted(tables.ask()[1])}
    assert failures == {first: 0, second: 7, third: 0}
    assert broken.tried == 7
    # All lines, as one screen may not have those of all tables that other tests have left.
    status = "\n".join(status_lines(settings, everything=True))
    assert f"{second}: set aside since" in status
    assert str(reports(settings)[second].fault) in status
    # Nothing of it counted as landed.
    broken.error = None
    look(tables)
    assert count(settings, second) == 3
    assert reports_of(settings, second) == ("landing", 0)
    assert f"{second}: set aside since" not in "\n".join(status_lines(settings, everything=True))
    assert second not in "\n".join(status_lines(settings))


def test_the_program_waits_during_an_outage(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    first, second = published(settings, "a", "b")
    broken = Broken(monkeypatch, first, OSError(errno.ENOSPC, "No space left on device"))
    tables = LandedTables(settings, [first, second])
    for _ in range(6):
        look(tables)
    assert reports_of(settings, first) == ("waiting", 6)
    assert count(settings, second) == 3
    broken.error = None
    look(tables)
    assert count(settings, first) == 3


@pytest.mark.parametrize("boundary", ["send_report", "ensure_watermarks_topic"])
def test_a_report_that_cannot_be_sent_stops_no_table(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, boundary: str
) -> None:
    names = published(settings, "a", "b")

    def fail(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(sending, boundary, fail)
    look(LandedTables(settings, names))
    assert [count(settings, name) for name in names] == [3, 3]
    assert "RuntimeError: a bug" in caplog.text


def test_the_program_waits_while_a_disk_is_full(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    with small_disk(tmp_path, 512) as disk:
        settings = settings.model_copy(update={"lake": settings.lake.model_copy(update={"path": str(disk / "lake")})})
        (name,) = published(settings, "a")
        tables = LandedTables(settings, [name])
        look(tables)
        for free in (0, 6_000, 12_000):
            filling = fill(disk, free=free)
            publish(settings, schema_of(settings, "a"), *range(10, 400))
            for _ in range(5):
                look(tables)
            if not free:
                assert reports_of(settings, name)[0] == "waiting"
                assert "No space left on device" in str(reports(settings)[name].fault)
            filling.unlink()
            look(tables)
            assert reports(settings)[name].fault is None
        assert count(settings, name) == 3 + 3 * 390


def test_outages_and_other_errors(tmp_path: Path) -> None:
    assert is_outage(OSError("Generic error\n No space left on device (os error 28)"))
    assert is_outage(ConnectionRefusedError())
    assert not is_outage(FileNotFoundError(errno.ENOENT, "gone"))
    assert not is_outage(ValueError("No space left on device"))


def garbage(seed: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values that are invalid in the topics of schemas and watermarks."""
    random_ = random.Random(seed)
    texts = ["{}", "[]", "null", "1e999", '"x"', '{"tables": 1}', '{"tables": {"a.b": {"until": -1}}}', "{" * 3000]
    texts += ['{"tables": {"a.b": {"until": 1e30}}}', '{"namespace": 1}', '{"namespace": "changes.a.b", "table": 7}']
    texts += ['{"tables": {"a.b": {"until": 1, "more": 2}}, "unknown": [1]}', '{"status": "unknown", "at": 1}']
    for n in range(200):
        # Most of them differ, as the last message of a key replaces the others.
        keys = [
            b"x%d" % n,
            b"",
            b"\xff\xfe%d" % n,
            b"landing/a.b%d" % n,
            b"%016x" % random_.getrandbits(64),
            b"1_%d" % n,
        ]
        key = random_.choice(keys)
        value = random_.choice([None, random_.randbytes(random_.randrange(40)), random_.choice(texts).encode()])
        yield key, value


def test_garbage_in_shared_topics_stops_no_table(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Of this test alone: readers in all later tests would try the garbage, too.
    schemas_topic, marks_topic = (f"{settings.cassandra.keyspace}.{name}" for name in ("schemas", "watermarks"))
    for module in (publishing, schema_changes):
        monkeypatch.setattr(module, "SCHEMAS_TOPIC", schemas_topic)
    monkeypatch.setattr(watermarks, "WATERMARKS_TOPIC", marks_topic)
    first, second = published(settings, "a", "b")
    ensure_watermarks_topic(settings)
    for topic in (schemas_topic, marks_topic):
        produce(settings, topic, *garbage(1))
    # CQL of the second table that cannot be read, and an unknown field.
    own = change_avro(schema_of(settings, "b"))
    broken = {**own, "fields": own["fields"][:-1], "table": {"name": "no"}}
    produce(settings, schemas_topic, (b"%016x" % fingerprint(broken), json.dumps(broken).encode()))
    said = {"tables": {first: {"until": time_now(), "unknown": 1}}, "unknown": True}
    produce(settings, marks_topic, (settings.cassandra.keyspace.encode(), json.dumps(said).encode()))
    marks = WatermarkTopic(settings)
    assert marks.read()[settings.cassandra.keyspace].tables[first].until > 0
    schemas = SchemaTopic(settings)
    schemas.read_on()
    assert marks.skipped > 50
    assert schemas.skipped > 50
    assert f"topic {schemas_topic}, partition 0, offset" in caplog.text
    tables = LandedTables(settings, [first, second])
    look(tables)
    assert (count(settings, first), count(settings, second)) == (3, 3)
    assert f"as the schema of {second} in it cannot be read" in caplog.text
    assert f"as the schema of {first}" not in caplog.text
    assert tables.topics is not None
    assert tables.topics.watermarks.skipped == marks.skipped
    # A message without a value deletes the report.
    produce(settings, marks_topic, (settings.cassandra.keyspace.encode(), None))
    assert settings.cassandra.keyspace not in marks.read()
    avro = change_avro(schema_of(settings, "a"))
    assert schemas.get(fingerprint(avro)) == avro
    produce(settings, schemas_topic, (b"%016x" % fingerprint(avro), None))
    schemas.read_on()
    assert schemas.get(fingerprint(avro)) is None


@pytest.mark.parametrize("version", [None, 2])
def test_messages_of_another_format_hold_their_table_only(
    settings: Settings, version: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = published(settings, "a", "b")
    own = change_avro(schema_of(settings, "b"))
    other = {name: value for name, value in own.items() if name != "format"} | ({"format": version} if version else {})
    produce(settings, SCHEMAS_TOPIC, (b"%016x" % fingerprint(own), json.dumps(other).encode()))
    look(LandedTables(settings, [first, second]))
    assert count(settings, first) == 3
    named = f"format version {version}" if version else "no format version, as before 0.1.0"
    assert f"as the schema of {second} in it cannot be read: WritetimeError: its schema has {named}" in caplog.text
    found = reports(settings)[second]
    assert found.status == "set aside"
    assert "no schema of format version 1" in (found.fault or "")
    # The schema of the messages is sent again, and then a message with a schema of another version.
    produce(settings, SCHEMAS_TOPIC, (b"%016x" % fingerprint(own), json.dumps(own).encode()))
    look(LandedTables(settings, [second]))
    assert count(settings, second) == 3
    publish(settings, schema_of(settings, "b"), 9)
    produce(settings, SCHEMAS_TOPIC, (b"%016x" % fingerprint(own), json.dumps(other).encode()))
    look(LandedTables(settings, [second]))
    assert count(settings, second) == 3
    fault = reports(settings)[second].fault or ""
    assert f": its schema has {named}" in fault
    assert "writetime forget" in fault


def test_a_schema_under_the_fingerprint_of_another_holds_its_messages(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = published(settings, "a", "b")
    own = change_avro(schema_of(settings, "b"))
    key = b"%016x" % fingerprint(own)
    # The messages could be read with it, and would lose their values: the table has no column of that name.
    other = {**own, "fields": [{**f, "name": "x"} if f["name"] == "v" else f for f in own["fields"]]}
    produce(settings, SCHEMAS_TOPIC, (key, json.dumps(other).encode()))
    look(LandedTables(settings, [first, second]))
    assert count(settings, first) == 3
    assert "its key is not the fingerprint of its schema" in caplog.text
    assert "has no schema of format version" in (reports(settings)[second].fault or "")
    produce(settings, SCHEMAS_TOPIC, (key, json.dumps(own).encode()))
    look(LandedTables(settings, [second]))
    assert count(settings, second) == 3


def test_topics_that_name_no_table_are_ignored(settings: Settings) -> None:
    name = settings.cassandra.keyspace
    ensure_topics(settings, {f"changes...{name}": {}, f"changes.{name}": {}, f"changes.{name}.a.dead": {}}, 1)
    assert not [table for table in captured_tables(settings) if name in table]
    # One that is empty has nothing to land, though no schema is there.
    ensure_topics(settings, {f"changes.{name}.empty": {}}, 1)
    assert Landing(settings, f"{name}.empty").drain() == 0


def test_more_messages_than_the_queue_of_a_client_holds(settings: Settings) -> None:
    """All of them are sent, and those of a key end in their order."""
    topic = changes_topic(f"{settings.cassandra.keyspace}.queue")
    ensure_topics(settings, {topic: {}}, 2)
    sender = Sender(settings, "test", **{"queue.buffering.max.kbytes": 64, "enable.idempotence": True})
    sizes = [random.Random(1).randrange(10, 20_000) for _ in range(400)]
    values = [b"%06d" % i + b"x" * size for i, size in enumerate(sizes)]
    sender.produce_all(topic, values, [b"k%d" % (i % 7) for i in range(400)], [i % 7 % 2 for i in range(400)])
    assert sender.flush()
    found = [
        (message.key() or b"", message.value() or b"")
        for message in messages_between(settings, topic, {0: 0, 1: 0}, end_offsets(settings, topic))
    ]
    assert {value for _, value in found} == set(values)
    # The last place of each.
    places = {pair: place for place, pair in enumerate(found)}
    for key in {key for key, _ in found}:
        in_order = [value for of, value in sorted(places, key=places.__getitem__) if of == key]
        assert in_order == sorted(in_order)


def test_the_end_of_a_topic_without_a_leader_is_requested_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = published(settings, "a")
    asked = 0

    def ends(settings: Settings, wanted: Callable[[str], bool]) -> TopicEnds:
        nonlocal asked
        asked += 1
        found = ends_of_topics(settings, wanted)
        faults = dict.fromkeys(found.ends, Transient("no leader"))
        return replace(found, ends={}, faults=faults) if asked == 1 else found

    monkeypatch.setattr(following, "ends_of_topics", ends)
    assert command("land", name).stdout == f"3 changes of {name}\n"
