"""No table, message or topic stops the landing of another table; and the cost of finding nothing new."""

import dataclasses
import errno
import json
import logging
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Message, Producer

from tests.capture.agents import count
from tests.support.made import SCHEMA, batch, write
from tests.support.status import status_lines
from writetime.capture.change_publisher import ChangePublisher
from writetime.cli.main import main
from writetime.cli.screen import Entries, fit
from writetime.cli.status import status_parts
from writetime.clients import kafka
from writetime.clients.kafka import (
    TopicEnds,
    client_config,
    end_offsets,
    ends_of_topics,
    ensure_topics,
    messages_between,
)
from writetime.core.config import Settings
from writetime.core.errors import Transient
from writetime.core.outages import is_outage
from writetime.lake.delta import BucketedTable
from writetime.lake.horizon import captured_until, raise_snapshot
from writetime.lake.table import is_in_lake, open_table, table_storage
from writetime.lake.views import time_now
from writetime.landing import following, landing, schema_changes
from writetime.landing import reports as sending
from writetime.landing.following import Tables
from writetime.landing.landing import Landing, captured_tables
from writetime.landing.landing_metrics import LandingMetrics
from writetime.landing.reports import stopped
from writetime.schema.avro import fingerprint
from writetime.schema.cql import parse_table
from writetime.schema.stored import from_json, to_json
from writetime.schema.table import TableSchema
from writetime.scylla_cdc.findings import (
    CLOSED_SET,
    DOUBTFUL_INSERT,
    IMAGE_DISAGREES,
    IMAGE_NOT_COMPARED,
    IN_SNAPSHOT,
    LATE,
    STATIC_DROPPED,
)
from writetime.wire import publishing, watermarks
from writetime.wire.change_messages import change_avro
from writetime.wire.publishing import SCHEMAS_TOPIC, SchemaTopic, Sender
from writetime.wire.topic_names import changes_topic, dead_changes_topic
from writetime.wire.watermarks import (
    WATERMARKS_TOPIC,
    LandingReport,
    SourceMarks,
    TableMark,
    WatermarkTopic,
    ensure_watermarks_topic,
)


def schema_of(settings: Settings, name: str) -> TableSchema:
    return dataclasses.replace(SCHEMA, keyspace=settings.cassandra.keyspace, name=name)


def publish(settings: Settings, schema: TableSchema, *ids: int) -> None:
    """Publish changes as an agent does."""
    publisher = ChangePublisher(settings)
    publisher.announce(schema)
    if ids:
        publisher.send(schema, batch([write(i, 0, 5, v=str(i)) for i in ids], schema))
    assert publisher.flush()


def published(settings: Settings, *names: str) -> list[str]:
    """Tables with three changes each."""
    schemas = [schema_of(settings, name) for name in names]
    for schema in schemas:
        publish(settings, schema, 1, 2, 3)
    return [schema.full_name for schema in schemas]


def produce(settings: Settings, topic: str, *messages: tuple[bytes | None, bytes | None], partition: int = 0) -> None:
    """Put messages as they are into a topic: keys and values."""
    producer = Producer(client_config(settings))
    for key, value in messages:
        producer.produce(topic, value, key, partition)
    assert producer.flush(15) == 0


def mark(settings: Settings, source: str, marks: SourceMarks) -> None:
    """Send the report of an agent."""
    sender = Sender(settings, "test")
    watermarks.send(sender, source, marks)
    assert sender.flush()


def reports(settings: Settings) -> dict[str, LandingReport]:
    topic = WatermarkTopic(settings)
    topic.read()
    return topic.reports


def look(tables: Tables) -> None:
    tables.look(threading.Event())
    tables._reporter.flush()


def reports_of(settings: Settings, table: str) -> tuple[str, int]:
    report = reports(settings)[table]
    return report.status, report.attempts


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once, and report at once."""
    for name in ("_PAUSE_SECONDS", "_SET_ASIDE_SECONDS", "_REPORT_SECONDS"):
        monkeypatch.setattr(following, name, 0.0)


class Broken:
    """Lets landing of one table raise an error at its boundary."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: str, error: Exception) -> None:
        self.error: Exception | None = error
        self.tried = 0
        land = Landing.land

        def fail(this: Landing, *arguments: Any, **named: Any) -> int:
            if this.name == table and self.error is not None:
                self.tried += 1
                raise self.error
            return land(this, *arguments, **named)

        monkeypatch.setattr(Landing, "land", fail)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), RecursionError("too deep"), KeyError("x"), MemoryError()])
def test_an_unknown_error_sets_its_table_aside(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    hurry(monkeypatch)
    first, second, third = published(settings, "a", "b", "c")
    broken = Broken(monkeypatch, second, error)
    metrics = LandingMetrics(settings)
    tables = Tables(settings, [first, second, third], metrics=metrics)
    look(tables)
    assert (count(settings, first), count(settings, third)) == (3, 3)
    assert not is_in_lake(settings, second)
    assert reports_of(settings, second) == ("waiting", 1)
    for _ in range(3):
        look(tables)
    assert reports_of(settings, second) == ("set aside", 4)
    assert type(error).__name__ in str(reports(settings)[second].fault)
    # What others have new lands, and the error is not logged at each try.
    publish(settings, schema_of(settings, "c"), 4)
    for _ in range(3):
        look(tables)
    assert count(settings, third) == 4
    assert sum(second in record.message for record in caplog.records if record.levelno == logging.ERROR) == 2
    assert metrics._errors.labels(second)._value.get() == broken.tried == 7
    assert metrics._tables.labels("set aside")._value.get() == 1
    shown = "\n".join(status_lines(settings))
    assert f"{second}: set aside since" in shown
    # Nothing of it counted as landed.
    broken.error = None
    look(tables)
    assert count(settings, second) == 3
    assert reports_of(settings, second) == ("landing", 0)
    assert second not in "\n".join(status_lines(settings))


def test_an_outage_is_waited_for(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    first, second = published(settings, "a", "b")
    broken = Broken(monkeypatch, first, OSError(errno.ENOSPC, "No space left on device"))
    tables = Tables(settings, [first, second])
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
    look(Tables(settings, names))
    assert [count(settings, name) for name in names] == [3, 3]
    assert "RuntimeError: a bug" in caplog.text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root, also that of `unshare --map-root-user --mount make test`")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_waited_for(settings: Settings, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    settings = settings.model_copy(update={"lake": settings.lake.model_copy(update={"path": str(small_disk / "lake")})})
    (name,) = published(settings, "a")
    filling = small_disk / "filling"
    tables = Tables(settings, [name])
    look(tables)
    for free in (0, 6_000, 12_000):
        with filling.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 512)
        with filling.open("r+b") as file:
            file.truncate(max(filling.stat().st_size - free, 0))
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
    """Keys and values that are not what the topics of schemas and watermarks have."""
    random_ = random.Random(seed)
    texts = ["{}", "[]", "null", "1e999", '"x"', '{"tables": 1}', '{"tables": {"a.b": {"until": -1}}}', "{" * 3000]
    texts += ['{"tables": {"a.b": {"until": 1e30}}}', '{"namespace": 1}', '{"namespace": "changes.a.b", "table": 7}']
    texts += ['{"tables": {"a.b": {"until": 1, "more": 2}}, "unknown": [1]}', '{"status": "unknown", "at": 1}']
    for _ in range(200):
        key = random_.choice([b"x", b"", b"\xff\xfe", b"landing/a.b", b"%016x" % random_.getrandbits(64), b"1_0"])
        value = random_.choice([None, random_.randbytes(random_.randrange(40)), random_.choice(texts).encode()])
        yield key, value


def test_garbage_in_shared_topics_stops_no_table(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    first, second = published(settings, "a", "b")
    ensure_watermarks_topic(settings)
    for topic in (SCHEMAS_TOPIC, WATERMARKS_TOPIC):
        produce(settings, topic, *garbage(1))
    # CQL of the second table that cannot be read, and a field that nobody knows yet.
    broken = change_avro(schema_of(settings, "b")) | {"table": {"name": "no"}}
    produce(settings, SCHEMAS_TOPIC, (b"%016x" % 7, json.dumps(broken).encode()))
    said = {"tables": {first: {"until": time_now(), "unknown": 1}}, "unknown": True}
    produce(settings, WATERMARKS_TOPIC, (settings.cassandra.keyspace.encode(), json.dumps(said).encode()))
    marks = WatermarkTopic(settings)
    assert marks.read()[settings.cassandra.keyspace].tables[first].until > 0
    schemas = SchemaTopic(settings)
    schemas.read_on()
    assert marks.skipped > 50
    assert schemas.skipped > 50
    assert f"topic {SCHEMAS_TOPIC}, partition 0, offset" in caplog.text
    tables = Tables(settings, [first, second], metrics=(metrics := LandingMetrics(settings)))
    look(tables)
    assert (count(settings, first), count(settings, second)) == (3, 3)
    assert f"as the schema of {second} in it cannot be read" in caplog.text
    assert f"as the schema of {first}" not in caplog.text
    assert metrics._skipped.labels(WATERMARKS_TOPIC)._value.get() == marks.skipped
    # A message without a value deletes the report.
    produce(settings, WATERMARKS_TOPIC, (settings.cassandra.keyspace.encode(), None))
    assert settings.cassandra.keyspace not in marks.read()
    avro = change_avro(schema_of(settings, "a"))
    assert schemas.get(fingerprint(avro)) == avro
    produce(settings, SCHEMAS_TOPIC, (b"%016x" % fingerprint(avro), None))
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
    look(Tables(settings, [first, second]))
    assert count(settings, first) == 3
    named = f"format version {version}" if version else "no format version, as before 0.1.0"
    assert f"as the schema of {second} in it cannot be read: WritetimeError: its schema has {named}" in caplog.text
    found = reports(settings)[second]
    assert found.status == "set aside"
    assert "no schema of format version 1" in (found.fault or "")
    # The schema that the messages were written with comes again, and one more message with a schema of another version.
    produce(settings, SCHEMAS_TOPIC, (b"%016x" % fingerprint(own), json.dumps(own).encode()))
    look(Tables(settings, [second]))
    assert count(settings, second) == 3
    publish(settings, schema_of(settings, "b"), 9)
    produce(settings, SCHEMAS_TOPIC, (b"%016x" % fingerprint(own), json.dumps(other).encode()))
    look(Tables(settings, [second]))
    assert count(settings, second) == 3
    fault = reports(settings)[second].fault or ""
    assert f": its schema has {named}" in fault
    assert "writetime forget" in fault


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


def command(*arguments: str) -> Any:
    return CliRunner().invoke(main, list(arguments))


def test_land_continues_with_the_other_tables(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    names = published(settings, "a", "b", "c")
    produce(settings, changes_topic(names[1]), (b"k", b"garbage"))
    broken = Broken(monkeypatch, names[0], RuntimeError("a bug"))
    answer = command("land", *names, f"{settings.cassandra.keyspace}.none")
    assert answer.exit_code == 1
    assert answer.stdout == f"3 changes of {names[2]}\n"
    assert f"Error: {names[0]}: a bug" in answer.stderr
    assert broken.tried == 4
    assert f"Error: {names[1]}: topic {changes_topic(names[1])}, partition 0, offset" in answer.stderr
    assert f"3 tables were not landed: {names[0]}, {names[1]}, {settings.cassandra.keyspace}.none" in answer.stderr
    assert reports_of(settings, names[1])[0] == "set aside"


@pytest.mark.parametrize("released_by", ["agent", "backfill"])
def test_a_message_is_skipped(settings: Settings, released_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "_WATERMARK_MICROS", 1)
    (name,) = published(settings, "a")
    source, before = settings.cassandra.keyspace, time_now() - 10_000_000
    ensure_watermarks_topic(settings)
    mark(settings, source, SourceMarks({name: TableMark(before)}))
    assert Landing(settings, name).drain() == 3
    end = end_offsets(settings, changes_topic(name), [0])[0]
    produce(settings, changes_topic(name), (b"k", b"garbage"), (b"k", None))
    publish(settings, schema_of(settings, "a"), *range(10, 30))
    mark(settings, source, SourceMarks({name: TableMark(time_now())}))
    places = [f"{changes_topic(name)}/0@{offset}" for offset in (end, end + 1)]
    answer = command("land", name)
    assert f"writetime land --skip {places[0]}" in answer.stderr
    assert "is not the place of a message" in command("land", "--skip", "x/1@2").output
    assert "has landed" in command("land", "--skip", f"{changes_topic(name)}/0@{end - 1}").output or not end
    assert "there is no message" in command("land", "--skip", f"{changes_topic(name)}/0@{end + 1000}").output
    answer = command("land", name, "--skip", places[0], "--skip", places[1])
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert f"20 changes of {name}" in answer.stdout
    assert "was skipped before" in command("land", "--skip", places[0]).output
    dead = dead_changes_topic(name)
    found = list(messages_between(settings, dead, {0: 0}, end_offsets(settings, dead)))
    assert [(m.key(), m.value()) for m in found] == [(b"k", b"garbage"), (b"k", None)]
    headers = dict(kafka.headers_of(found[0]))
    assert headers["dead-letter.topic"] == changes_topic(name).encode()
    assert headers["dead-letter.offset"] == str(end).encode()
    # The watermark waits, as the messages may have had reports.
    now = time_now()
    mark(settings, source, SourceMarks({name: TableMark(now)}))
    drains = Landing(settings, name)
    assert drains.drain() == 0
    table = open_table(settings, name)
    assert captured_until(table.changes.load()) == before
    publish(settings, schema_of(settings, "a"), 40)
    assert drains.drain() == drains.offsets_landed == 1
    assert captured_until(table.changes.load()) == before
    if released_by == "agent":
        mark(settings, source, SourceMarks({name: TableMark(now + 1, time_now())}))
    else:
        raise_snapshot(table, time_now())
    assert Landing(settings, name).drain() == 0
    assert captured_until(table.changes.load()) >= now


def test_a_table_is_forgotten(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    state = Path(settings.lake.path).parent / "agent"
    monkeypatch.setenv("WRITETIME_CAPTURE__STATE_DIR", str(state))
    name, other = published(settings, "a", "b")
    assert command("land", name, other).exit_code == 0
    (state / "schemas").mkdir(parents=True)
    for table in (name, other):
        stored = {
            "captured": True,
            "versions": [{"seen_at": "", "table": to_json(parse_table(f"CREATE TABLE {table} (id int PRIMARY KEY)"))}],
        }
        (state / "schemas" / f"{table}.json").write_text(json.dumps(stored))
    (state / "snapshots.json").write_text(json.dumps({name: {}, other: {}}))
    answer = command("forget", name)
    assert answer.exit_code == 1  # Nobody confirms.
    assert is_in_lake(settings, name)
    for part in (f"topics {changes_topic(name)}", "1 schemas in writetime.schemas", f"{name} of the lake", str(state)):
        assert part in answer.output
    assert command("forget", name, "--yes").exit_code == 0
    assert not Path(table_storage(settings, name).address).exists()
    assert name not in captured_tables(settings)
    assert name not in reports(settings)
    assert [path.stem for path in (state / "schemas").glob("*.json")] == [other]
    assert list(json.loads((state / "snapshots.json").read_text())) == [other]
    assert f"nothing is kept of {name}" in command("forget", name, "--yes").output
    # The other one is as it was, and the name may be used again.
    publish(settings, schema_of(settings, "b"), 4)
    publish(settings, dataclasses.replace(schema_of(settings, "a"), id=None), 1)
    answer = command("land", name, other)
    assert answer.stdout == f"1 changes of {name}\n1 changes of {other}\n"


def test_the_end_of_a_topic_without_a_leader_is_requested_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = published(settings, "a")
    asked = 0

    def ends(settings: Settings, wanted: Callable[[str], bool]) -> TopicEnds:
        nonlocal asked
        asked += 1
        found = ends_of_topics(settings, wanted)
        return TopicEnds({}, {topic: Transient("no leader") for topic in found.ends}) if asked == 1 else found

    monkeypatch.setattr(following, "ends_of_topics", ends)
    assert command("land", name).stdout == f"3 changes of {name}\n"


def test_why_a_table_has_stopped(settings: Settings) -> None:
    (name,) = published(settings, "a")
    source = settings.cassandra.keyspace
    ensure_watermarks_topic(settings)
    mark(settings, source, SourceMarks({name: TableMark(time_now())}, status={"at": time.time()}))
    assert Landing(settings, name).drain() == 3
    table = open_table(settings, name)
    assert stopped(settings, table) == []
    # Landing fails.
    produce(settings, changes_topic(name), (b"k", b"garbage"))
    assert command("land", name).exit_code == 1
    (reason,) = stopped(settings, table)
    assert "the table is set aside" in reason
    # Nobody lands: messages wait for too long.
    impatient = settings.model_copy(update={"capture": settings.capture.model_copy(update={"stale_seconds": 0.001})})
    assert any("have not been landed for more than" in reason for reason in stopped(impatient, table))
    # An agent reports what holds it, or reports nothing.
    old = time_now() - 3_600_000_000
    mark(settings, source, SourceMarks({name: TableMark(old)}, status={"at": time.time(), "held_by": "a segment"}))
    assert any("a segment" in reason for reason in stopped(settings, table))
    # What holds this table stays until someone acts, so it counts at once; so does a snapshot that failed.
    now, at = TableMark(time_now()), time.time()
    mark(settings, source, SourceMarks({name: now}, status={"at": at, "held": {name: "a gap"}, "held_by": "another"}))
    assert any("a gap" in reason for reason in stopped(settings, table))
    mark(settings, source, SourceMarks({name: now}, status={"at": at, "held": {"ks.other": "a gap"}}))
    assert not any("a gap" in reason for reason in stopped(settings, table))
    mark(
        settings,
        source,
        SourceMarks({name: TableMark(0)}, status={"at": at, "snapshots": {name: {"status": "failed"}}}),
    )
    assert any("its snapshot failed" in reason for reason in stopped(settings, table))
    mark(settings, source, SourceMarks({name: TableMark(old)}, status={"at": 1.0}))
    assert any("has not reported since 1970" in reason for reason in stopped(settings, table))
    mark(settings, source, SourceMarks({}, status={"at": time.time(), "held_by": None}))
    assert any("published no longer" in reason for reason in stopped(settings, table))
    mark(settings, source, SourceMarks({}, retired=True))
    assert len(stopped(settings, table)) == 1


class Counted:
    """Counts the calls of what costs something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: dict[str, int] = {}
        targets: list[tuple[Any, str]] = [(BucketedTable, "load"), (BucketedTable, "exists"), (kafka, "_ask")]
        targets += [(BucketedTable, "transactions_of"), (landing, "open_table")]
        for owner, name in targets:
            self._count(monkeypatch, owner, name)

    def _count(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            return call(*arguments, **named)

        monkeypatch.setattr(owner, name, counting)

    def of(self, tables: Tables) -> Mapping[str, int]:
        """What a look calls."""
        self.calls.clear()
        look(tables)
        return dict(self.calls)


def test_a_table_without_new_messages_costs_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    names = published(settings, *(f"t{i}" for i in range(12)))
    ensure_watermarks_topic(settings)
    now = time_now()
    mark(settings, settings.cassandra.keyspace, SourceMarks({name: TableMark(now) for name in names}))
    counted = Counted(monkeypatch)
    tables = Tables(settings, names)
    counted.of(tables)
    few = Tables(settings, names[:2])
    counted.of(few)
    # Its own reports are read once; from then on a look costs the same for each number of tables.
    counted.of(tables)
    idle = counted.of(tables)
    assert idle == counted.of(few)
    assert idle.keys() == {"_ask"}
    # A new process asks the lake for one small file of each table.
    started = counted.of(Tables(settings, names))
    assert started["transactions_of"] == len(names)
    assert not {"load", "exists", "open_table"} & started.keys()
    # Only where something is new a table is opened.
    publish(settings, schema_of(settings, "t3"), 5)
    assert counted.of(tables)["open_table" if "open_table" in counted.calls else "load"] <= 12
    assert count(settings, names[3]) == 4
    # A report that does not fit the lake is not believed: here it has been restored from a copy.
    mark(settings, settings.cassandra.keyspace, SourceMarks({name: TableMark(now + 1) for name in names}))
    log_folder = Path(table_storage(settings, names[3]).address) / "changes" / "_delta_log"
    newest = max(log_folder.glob("*.json"))
    newest.unlink()
    look(Tables(settings, names))
    assert count(settings, names[3]) == 4


def test_tables_share_one_reading_of_the_schemas(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic of the schemas is read once for all tables, and each schema is parsed once."""
    names = published(settings, *(f"shared{i}" for i in range(6)))
    read: Counter[int] = Counter()
    parsed: Counter[str] = Counter()

    def count_messages(of: Settings, topic: str, *offsets: Mapping[int, int]) -> Iterator[Message]:
        for message in messages_between(of, topic, *offsets):
            if topic == SCHEMAS_TOPIC:
                read[message.offset() or 0] += 1
            yield message

    def count_parsed(stored: Any) -> TableSchema:
        schema = from_json(stored)
        parsed[schema.full_name] += 1
        return schema

    monkeypatch.setattr(publishing, "messages_between", count_messages)
    monkeypatch.setattr(schema_changes, "from_json", count_parsed)
    tables = Tables(settings, names)
    look(tables)
    assert [count(settings, name) for name in names] == [3] * len(names)
    assert len(read) >= len(names)
    assert set(read.values()) == {1}
    assert parsed == dict.fromkeys(names, 1)
    # Of more changes, only the messages of the schemas that are new are read, as each publisher registers its own.
    for name in names:
        publish(settings, schema_of(settings, name.split(".")[1]), 4)
    look(tables)
    assert [count(settings, name) for name in names] == [4] * len(names)
    assert set(read.values()) == {1}
    assert parsed == dict.fromkeys(names, 1)
    # Another process parses no schema that the lake has already.
    look(Tables(settings, names))
    assert parsed == dict.fromkeys(names, 1)


@pytest.mark.parametrize("source", ["node", "log"])
def test_status_of_many_tables_fits_one_screen(settings: Settings, tmp_path: Path, source: str) -> None:
    """Also when each table has each fault that there is."""
    settings = settings.model_copy(
        update={"capture": settings.capture.model_copy(update={"state_dir": tmp_path / "state"})}
    )
    (tmp_path / "state").mkdir()
    names = [f"{settings.cassandra.keyspace}.t{i:03}" for i in range(300)]
    lag = dict.fromkeys(("lag_bytes", "lag_segments", "lag_seconds", "oldest_segment_seconds", "backlog_bytes"), 0)
    totals = ("segments", "segments_set_aside", "segments_vanished", "mutations_set_aside", "changes_set_aside")
    kinds = (STATIC_DROPPED, IN_SNAPSHOT, DOUBTFUL_INSERT, IMAGE_DISAGREES, IMAGE_NOT_COMPARED, LATE, CLOSED_SET)
    of_log = {"until": time_now(), "fault": "a reason", "found": dict.fromkeys(kinds, 1)}
    snapshot = {"status": "wanted", "sstables": 1, "sstables_read": 0, "changes": 0}
    status = {
        "at": time.time(),
        "lag": lag | {"backlog_limit_bytes": 1, "aside_segments": 0},
        "totals": dict.fromkeys(totals, 1),
        "changes": {name: {"row": i} for i, name in enumerate(names)},
        "snapshots": dict.fromkeys(names, snapshot),
        "errors": dict.fromkeys(("database", "publishing", "schema", "storage", "unexpected"), 1),
        "published_until": time_now(),
        "held_by": "a reason",
        "held": dict.fromkeys(names, "a reason"),
        "not_captured": dict.fromkeys(names, "a reason"),
    }
    if source == "log":
        status["logs"] = dict.fromkeys(names, of_log)
    (tmp_path / "state" / "status.json").write_text(json.dumps(status))
    sender = Sender(settings, "test")
    ensure_watermarks_topic(settings)
    for i, name in enumerate(names):
        fault = "a reason" if i % 2 else None
        report = LandingReport(time.time(), "set aside" if fault else "landing", 1, fault, 1.0, 1)
        watermarks.send_report(sender, name, report)
    assert sender.flush()
    lines = list(status_lines(settings))
    # The screen has 24 lines. The servers have three of them, faults of queues two, dead letters one.
    assert len(fit([*status_parts(settings), "", Entries([[""]] * 300)], 24 - 3)) <= 24 - 3
    assert len(lines) <= 24 - 3
    assert any(f"{names[299]}: 299 row" in line for line in lines)
    everything = "\n".join(status_lines(settings, everything=True))
    # Its snapshot, changes and landing; and why it is held and not captured, or how far its log is.
    count = 5 if source == "node" else 4
    assert all(everything.count(f"{name}: ") == count and f"snapshot {name}: wanted" in everything for name in names)
    for name in names:
        watermarks.send_report(sender, name, None)
    assert sender.flush()
