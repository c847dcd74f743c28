"""A topic of changes that was deleted and created again is not mistaken for the one that was landed before."""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.support.broker import without_database
from tests.support.published import command, hurry, produce, publish, published, schema_of
from tests.support.waiting import wait_for
from writetime.clients.kafka import client_config, delete_topics, end_offsets, ensure_topics, topic_ids
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake.table import open_table
from writetime.landing import landed_offsets
from writetime.landing.landed_offsets import not_landed
from writetime.landing.skipping import skips_of
from writetime.landing.topics import Topics
from writetime.wire.publishing import CompactedTopic
from writetime.wire.topic_names import changes_topic


@pytest.fixture
def settings(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return without_database(kafka, tmp_path, monkeypatch)


def count(settings: Settings, name: str) -> int:
    """The changes in the lake."""
    return sum(file.rows for file in open_table(settings, name).changes.load().files)


def grow(settings: Settings, topic: str, partitions: int) -> None:
    admin = AdminClient(client_config(settings))
    [grown] = admin.create_partitions([NewPartitions(topic, partitions)]).values()
    grown.result(30)
    wait_for(lambda: len(end_offsets(settings, topic)) == partitions)


def test_a_topic_with_as_many_messages_as_before(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end offsets are those that have landed, and the report of landing is still there."""
    hurry(monkeypatch)
    (name,) = published(settings, "a")
    topic = changes_topic(name)
    assert command("land", name).stdout == f"3 changes of {name}\n"
    before = end_offsets(settings, topic)
    delete_topics(settings, [topic])
    publish(settings, schema_of(settings, "a"), 1, 2, 3)
    assert end_offsets(settings, topic) == before
    assert not_landed(settings, name) == 3
    assert f"topic {topic} is not the one that was landed before" in command("land", name).stderr
    assert count(settings, name) == 3
    assert command("land", name, "--accept-gap").stdout == f"3 changes of {name}\n"
    assert count(settings, name) == 6
    assert command("land", name).stdout == f"0 changes of {name}\n"


def test_a_skipped_message_of_the_topic_before_skips_none(settings: Settings) -> None:
    (name,) = published(settings, "a")
    topic = changes_topic(name)
    assert command("land", name).exit_code == 0
    place = f"{topic}/0@{end_offsets(settings, topic)[0]}"
    produce(settings, topic, (b"key", b"garbage"))
    assert command("land", name, "--skip", place).exit_code == 0
    delete_topics(settings, [topic])
    publish(settings, schema_of(settings, "a"), *range(100))
    assert command("land", name, "--accept-gap").stdout == f"100 changes of {name}\n"
    assert len(skips_of(open_table(settings, name).changes.load())) == 1


def test_a_compacted_topic_is_read_again(settings: Settings) -> None:
    name = f"{settings.cassandra.keyspace}.compacted"
    topic = CompactedTopic(settings, name, lambda key, _: key)
    # With fewer messages than before, and with more.
    for keys in ([b"a", b"b"], [b"c"], [b"d", b"e", b"f"]):
        ensure_topics(settings, {name: {"cleanup.policy": "compact"}}, 1)
        produce(settings, name, *((key, b"") for key in keys))
        assert [key for _, key in topic.read_on()] == keys
        delete_topics(settings, [name])


def test_ids_of_many_topics_are_requested_at_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a topic that is new is known by its own id."""
    asked: list[Sequence[str]] = []

    def ask(settings: Settings, topics: Sequence[str]) -> dict[str, int]:
        asked.append(topics)
        return topic_ids(settings, topics)

    names = [changes_topic(f"{settings.cassandra.keyspace}.t{n}") for n in range(10)]
    ensure_topics(settings, {name: {} for name in names}, 1)
    monkeypatch.setattr("writetime.landing.topics.topic_ids", ask)
    topics = Topics(settings)
    assert {name: topics.id_of(name) for name in names} == topic_ids(settings, names)
    assert len(asked) < len(names)
    delete_topics(settings, names[:1])
    ensure_topics(settings, {names[0]: {}}, 1)
    wait_for(lambda: topics.id_of(names[0]) == topic_ids(settings, names)[names[0]])


def test_a_message_of_the_new_topic_is_skipped(settings: Settings) -> None:
    """Although the one before had landed further than its offset."""
    name = schema_of(settings, "a").full_name
    topic = changes_topic(name)
    publish(settings, schema_of(settings, "a"), *range(100))
    assert command("land", name).exit_code == 0
    partitions = end_offsets(settings, topic)
    assert partitions[0] > 0
    delete_topics(settings, [topic])
    ensure_topics(settings, {topic: {}}, len(partitions))
    produce(settings, topic, (b"key", b"garbage"))
    publish(settings, schema_of(settings, "a"), *range(5))
    assert f"--skip {topic}/0@0" in command("land", name, "--accept-gap").stderr
    answer = command("land", name, "--skip", f"{topic}/0@0", "--accept-gap")
    assert (answer.exit_code, answer.stdout.splitlines()[-1]) == (0, f"5 changes of {name}")


def test_a_new_topic_that_gets_more_partitions(settings: Settings) -> None:
    """The offsets that landed of the topic before, in partitions that the new one had not at first, do not count."""
    name = schema_of(settings, "a").full_name
    topic = changes_topic(name)
    ensure_topics(settings, {topic: {}}, 2)
    publish(settings, schema_of(settings, "a"), *range(100))
    assert command("land", name).exit_code == 0
    delete_topics(settings, [topic])
    ensure_topics(settings, {topic: {}}, 1)
    publish(settings, schema_of(settings, "a"), *range(100))
    assert command("land", name, "--accept-gap").stdout == f"100 changes of {name}\n"
    grow(settings, topic, 2)
    publish(settings, schema_of(settings, "a"), *range(300))
    assert command("land", name).stdout == f"300 changes of {name}\n"


def test_ids_are_requested_by_threads(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tables land at the same time."""
    names = [changes_topic(f"shop.t{n:02}") for n in range(40)]
    wanted = {name: number for number, name in enumerate(names, 1)}
    monkeypatch.setattr("writetime.landing.topics.topic_ids", lambda _, topics: {t: wanted[t] for t in topics})
    monkeypatch.setattr("writetime.landing.topics.captured_tables", lambda _: [])
    monkeypatch.setattr("writetime.landing.topics.ID_SECONDS", 0.0)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            topics = Topics(settings)
            with ThreadPoolExecutor(8) as threads:
                assert list(threads.map(topics.id_of, names)) == list(map(wanted.get, names))
    finally:
        sys.setswitchinterval(before)


def test_a_topic_that_kafka_refuses_to_describe_does_not_stop_the_others(settings: Settings) -> None:
    name, refused = changes_topic(f"{settings.cassandra.keyspace}.t"), "not a name!"
    ensure_topics(settings, {name: {}}, 1)
    assert topic_ids(settings, [name, refused]).keys() == {name}
    with pytest.raises(WritetimeError, match="ids of topics"):
        topic_ids(settings, [refused])


def test_a_topic_that_grows_while_it_is_counted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = published(settings, "a")
    first = landed_offsets.beginning_offsets

    def grown(settings: Settings, topic: str) -> dict[int, int]:
        found = first(settings, topic)
        grow(settings, topic, len(found) + 1)
        return found

    monkeypatch.setattr(landed_offsets, "beginning_offsets", grown)
    assert not_landed(settings, name) == 3
    monkeypatch.undo()
    assert not_landed(settings, name) == 3
