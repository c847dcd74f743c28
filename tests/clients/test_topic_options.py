"""Topics on a broker whose defaults lose messages: new topics do not depend on them, and existing ones are checked."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.support.broker import without_database
from tests.support.hostile_broker import hostile_broker, let_it_compact, offsets_in
from tests.support.made import batch, write
from tests.support.published import command, publish, schema_of
from tests.support.topics import alter_topic
from tests.support.waiting import wait_for
from writetime.capture.change_publisher import ChangePublisher
from writetime.cli import check
from writetime.cli.main import main
from writetime.clients.kafka import client_config, delete_topics, ensure_topics
from writetime.clients.topic_options import Keeps, faults_of
from writetime.core.config import Settings
from writetime.ingest.topics import ensure_ingest_topics
from writetime.lake.table import open_table
from writetime.row_events.publish import EventPublisher
from writetime.wire import publishing
from writetime.wire.publishing import SCHEMAS_TOPIC, RefusedMessage, ensure_schemas_topic
from writetime.wire.topic_names import changes_topic, row_events_topic
from writetime.wire.watermarks import WATERMARKS_TOPIC, ensure_watermarks_topic

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with hostile_broker(tmp_path_factory.mktemp("hostile")) as settings:
        yield settings


@pytest.fixture
def settings(hostile: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return without_database(hostile, tmp_path, monkeypatch)


def by_the_broker(settings: Settings, topic: str) -> str:
    """Create a topic as an operator or a broker does."""
    # Otherwise it would take no message.
    taking = {"min.insync.replicas": "1", "message.timestamp.type": "LogAppendTime"}
    admin = AdminClient(client_config(settings))
    admin.create_topics([NewTopic(topic, 1, 1, config=taking)])[topic].result(30)
    return topic


def told(settings: Settings) -> list[str]:
    """The faults of Kafka that `writetime check` lists."""
    return [str(line) for line in check._kafka(settings) if isinstance(line, check.CheckFault)]


def test_new_topics_keep_what_their_readers_need(settings: Settings) -> None:
    """Seen at the messages: those of a topic with the broker's defaults are compacted meanwhile."""
    ensure_ingest_topics(settings)
    schema = schema_of(settings, "a")
    publish(settings, schema)
    ensure_topics(settings, {f"{changes_topic(schema.full_name)}.dead": {"retention.ms": "-1"}}, 1)
    ensure_watermarks_topic(settings)
    topics = [settings.ingest.topic, settings.ingest.dead_letter_topic, changes_topic(schema.full_name)]
    control = by_the_broker(settings, "control")
    producer = Producer(client_config(settings, **{"acks": "all", "batch.num.messages": 1}))
    for topic in (*topics, control):
        for number in range(30):
            # As long ago as a client's clock may be.
            producer.produce(topic, bytes(15_000), f"user-{number % 3}".encode(), 0, timestamp=1)
    for topic in topics:
        producer.produce(topic, bytes(900_000), b"large", 0)
    assert producer.flush(15) == 0
    let_it_compact(settings, control)
    assert [len(offsets_in(settings, topic)[0]) for topic in topics] == [31, 31, 31]
    delete_topics(settings, [control])
    assert told(settings) == []


_BY_CLIENTS = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.after.max.ms": "3600000",
}
_BROKEN: Mapping[tuple[str, str], tuple[Keeps, dict[str, str]]] = {
    ("cleanup.policy", "compact"): (Keeps.UNREAD, {}),
    ("cleanup.policy", "compact,delete"): (Keeps.ALL, {}),
    ("cleanup.policy", "delete"): (Keeps.LATEST, {}),
    ("cleanup.policy", "delete,compact"): (Keeps.LATEST, {}),
    ("retention.ms", "0"): (Keeps.UNREAD, {}),
    ("retention.ms", "86399999"): (Keeps.UNREAD, {}),
    ("retention.ms", "3600000"): (Keeps.ALL, {}),
    ("retention.ms", "31536000000"): (Keeps.ALL, {}),
    ("retention.bytes", "0"): (Keeps.UNREAD, {}),
    ("retention.bytes", "1000000000"): (Keeps.ALL, {}),
    ("max.message.bytes", "999999"): (Keeps.LATEST, {}),
    ("segment.bytes", "1048576"): (Keeps.UNREAD, {}),
    ("min.insync.replicas", "2"): (Keeps.UNREAD, {}),
    ("message.timestamp.after.max.ms", "0"): (Keeps.UNREAD, _BY_CLIENTS),
    ("message.timestamp.before.max.ms", "60000"): (Keeps.LATEST, _BY_CLIENTS),
}


@pytest.mark.parametrize(("broken", "of"), _BROKEN.items(), ids=lambda item: "=".join(map(str, item[:2])))
def test_an_option_that_breaks_a_guarantee_is_named(
    settings: Settings, broken: tuple[str, str], of: tuple[Keeps, dict[str, str]]
) -> None:
    """And the command in the message repairs it."""
    (option, value), (keeps, others) = broken, of
    topic = f"{settings.cassandra.keyspace}.t"
    policy = {"cleanup.policy": "compact"} if keeps is Keeps.LATEST else {}
    ensure_topics(settings, {topic: {"retention.ms": "-1", "max.message.bytes": "2097152", **policy}}, 1)
    needed = {topic: keeps}
    assert faults_of(settings, needed, 2 << 20) == {topic: []}
    alter_topic(settings, topic, {**others, option: value})
    # A broker applies it a moment later.
    wait_for(lambda: faults_of(settings, needed, 2 << 20)[topic])
    (fault,) = faults_of(settings, needed, 2 << 20)[topic]  # pyright: ignore[reportGeneralTypeIssues]
    assert str(fault).startswith(f"topic {topic} has {option}={value}, so ")
    repair = re.search(r"--entity-name (\S+) --add-config ([\w.]+)=(\S+)`$", str(fault))
    assert repair is not None
    assert repair[1] == topic
    alter_topic(settings, topic, {repair[2]: repair[3]})
    wait_for(lambda: faults_of(settings, needed, 2 << 20) == {topic: []})
    delete_topics(settings, [topic])


def test_row_events_may_be_compacted_by_their_operator_only(settings: Settings) -> None:
    name = schema_of(settings, "a").full_name
    topic = by_the_broker(settings, row_events_topic(name))
    (line,) = [line for line in told(settings) if "cleanup.policy" in line]
    assert line.startswith(f"topic {topic} has cleanup.policy=compact, so")
    with pytest.raises(Exception, match=f"topic {re.escape(topic)} has cleanup.policy=compact"):
        EventPublisher(settings, name)
    alter_topic(settings, topic, {"cleanup.policy": "compact"})
    wait_for(lambda: not [line for line in told(settings) if "cleanup.policy" in line])
    EventPublisher(settings, name)
    delete_topics(settings, [topic])


def test_a_lossy_topic_stops_its_own_table_only(settings: Settings) -> None:
    bad, good = schema_of(settings, "bad"), schema_of(settings, "good")
    topic = by_the_broker(settings, changes_topic(bad.full_name))
    assert f"topic {topic} has cleanup.policy=compact" in "; ".join(told(settings))
    publisher = ChangePublisher(settings)
    with pytest.raises(RefusedMessage, match=r"cleanup\.policy=compact") as raised:
        publisher.send(bad, batch([write(1, 0, 5, v="x")], bad))
    publisher = publisher.after(raised.value)
    publisher.send(good, batch([write(1, 0, 5, v="x")], good))
    assert publisher.flush()
    alter_topic(settings, topic, {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"})
    wait_for(lambda: "is_lossy=True" not in repr(faults_of(settings, {topic: Keeps.UNREAD})))
    publisher.send(bad, batch([write(1, 0, 5, v="x")], bad))
    assert publisher.flush()


def test_changes_that_kafka_has_compacted_are_not_landed_around(settings: Settings) -> None:
    """However the topic became so, and although its options are right again."""
    bad, good = schema_of(settings, "bad"), schema_of(settings, "good")
    for schema in (bad, good):
        publish(settings, schema)
    topic = changes_topic(bad.full_name)
    for schema in (bad, good):
        publish(settings, schema, *(number % 2 for number in range(12)))
    publisher = ChangePublisher(settings)
    publisher.announce(bad)
    alter_topic(settings, topic, {"cleanup.policy": "compact"})

    def is_compacted() -> bool:
        publisher.send(bad, batch([write(number, 0, 5, v="x") for number in range(10)], bad))
        publisher.flush()
        return any(offsets[0] for offsets in offsets_in(settings, topic).values() if offsets)

    assert command("land", good.full_name).stdout == f"12 changes of {good.full_name}\n"
    wait_for(is_compacted)
    alter_topic(settings, topic, {"cleanup.policy": "delete"})
    error = command("land", bad.full_name).stderr
    assert re.search(rf"topic {re.escape(topic)}, partition \d: Kafka no longer has the messages from 0 to \d+", error)
    assert f"writetime backfill {bad.full_name}" in error
    left = sum(map(len, offsets_in(settings, topic).values()))
    assert command("land", bad.full_name, "--accept-gap").stdout == f"{left} changes of {bad.full_name}\n"
    assert sum(file.rows for file in open_table(settings, bad.full_name).changes.load().files) == left


def test_what_cannot_be_checked_is_named(settings: Settings) -> None:
    """And nothing stops, because a right is missing."""
    name = schema_of(settings, "secret").full_name
    publish(settings, schema_of(settings, "secret"), 1)
    topic = changes_topic(name)
    rules = {AclOperation.ALL: AclPermissionType.ALLOW, AclOperation.DESCRIBE_CONFIGS: AclPermissionType.DENY}
    admin = AdminClient(client_config(settings))
    for operation, permission in rules.items():
        rule = AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission
        )
        [made] = admin.create_acls([rule]).values()
        made.result(15)
    found = faults_of(settings, {topic: Keeps.UNREAD})[topic]
    assert not isinstance(found, list)
    assert "needs the rights Describe and DescribeConfigs on it: TOPIC_AUTHORIZATION_FAILED" in str(found)
    assert str(found) in told(settings)
    assert command("land", name).stdout == f"1 change of {name}\n"


def test_the_shared_topics_are_checked(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publishing, "_looked_at", set())
    for topic, ensure in ((SCHEMAS_TOPIC, ensure_schemas_topic), (WATERMARKS_TOPIC, ensure_watermarks_topic)):
        ensure_topics(settings, {topic: {"cleanup.policy": "compact"}}, 1)
        alter_topic(settings, topic, {"cleanup.policy": "compact,delete"})
        wait_for(lambda topic=topic: [line for line in told(settings) if f"topic {topic} has" in line])
        ensure(settings)
        alter_topic(settings, topic, {"cleanup.policy": "compact"})
        logged = [record.getMessage() for record in caplog.records]
        assert [line for line in logged if f"topic {topic} has cleanup.policy=compact,delete, so" in line]


def test_check_lists_them(settings: Settings) -> None:
    topic = by_the_broker(settings, changes_topic(schema_of(settings, "old").full_name))
    answer = CliRunner().invoke(main, ["check"])
    assert answer.exit_code == 1
    assert f"topic {topic} has cleanup.policy=compact, so" in answer.output
    delete_topics(settings, [topic])
