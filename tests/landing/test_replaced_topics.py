"""A topic of changes that was deleted and created again is not taken for the one that was landed before."""

import pytest

from tests.support.published import command, hurry, produce, publish, published, schema_of
from writetime.clients.kafka import delete_topics, end_offsets, ensure_topics
from writetime.core.config import Settings
from writetime.lake.table import open_table
from writetime.landing.landed_offsets import not_landed
from writetime.landing.skipping import skips_of
from writetime.wire.publishing import CompactedTopic
from writetime.wire.topic_names import changes_topic


def count(settings: Settings, name: str) -> int:
    """The changes in the lake."""
    return sum(file.rows for file in open_table(settings, name).changes.load().files)


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
    for keys in ([b"a", b"b"], [b"c"]):
        ensure_topics(settings, {name: {"cleanup.policy": "compact"}}, 1)
        produce(settings, name, *((key, b"") for key in keys))
        assert [key for _, key in topic.read_on()] == keys
        delete_topics(settings, [name])
