"""The offsets of consumer groups, and the topics that they belong to."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, ConsumerGroupState, TopicPartition

from writetime.clients import kafka
from writetime.clients.kafka_errors import kind_of
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError

_TOPIC_NOTE = "topic:"


class OtherTopic(WritetimeError):
    """A topic is not the one that a group has read: it was deleted and created again."""


def committed_offsets(settings: Settings, topic: str, group: str) -> dict[int, int | None]:
    """Return the offset that the group has committed for each partition; None if it has committed nothing. Raises
    OtherTopic: the offsets are of an earlier topic of the name; WritetimeError: the topic is missing, or no broker
    answers.
    """
    partitions = [TopicPartition(topic, p) for p in kafka.partitions_of(settings, topic)]
    with _member_of(settings, group) as consumer:
        answer = committed(settings, consumer, group, partitions)
    require_same_topic(settings, topic, group, [topic_of_note(tp.metadata) for tp in answer])
    return {tp.partition: tp.offset if tp.offset >= 0 else None for tp in answer}


def committed(
    settings: Settings, consumer: Consumer, group: str, partitions: list[TopicPartition]
) -> list[TopicPartition]:
    """Return partitions with the offsets that the group of a consumer has committed, and their metadata; the offset is
    negative where nothing is committed.

    A partition may have an error instead. That is not the same as no commit: a caller that confuses the two reads all
    messages again. The request is repeated if the group's coordinator is not known yet. Raises WritetimeError: an
    offset cannot be read; a `Transient` if that may pass.
    """
    answer = kafka.ask_cluster(
        settings, f"group {group}", lambda _: consumer.committed(partitions, kafka.TIMEOUT_SECONDS)
    )
    for tp in answer:
        if tp.error is not None:
            raise kind_of(tp.error)(
                f"{tp.topic}/{tp.partition}: the offset of group {group} is not known: {tp.error.str()}"
            )
    return answer


def note_of_topic(topic_id: int) -> str:
    """Return the text in the metadata of a commit that names the topic whose offsets it has, by its id; empty for 0."""
    return f"{_TOPIC_NOTE}{topic_id}" if topic_id else ""


def topic_of_note(metadata: str | None) -> int:
    """Return the id of the topic that the metadata of a commit begins with; 0 if there is none."""
    note = (metadata or "").partition(" ")[0].removeprefix(_TOPIC_NOTE)
    return int(note) if (metadata or "").startswith(_TOPIC_NOTE) and note.isdecimal() else 0


def require_same_topic(settings: Settings, topic: str, group: str, read: Sequence[int]) -> int:
    """Check that a topic is the one that a group has read, by the ids of the topics of its offsets (0 is unknown).
    Return the topic's id; 0 if brokers give topics no ids. Raises OtherTopic: it is another one; NoTopic: there is no
    such topic; WritetimeError: no broker answers.
    """
    ids = kafka.topic_ids(settings, [topic])
    if topic not in ids:
        raise kafka.NoTopic(f"topic {topic} does not exist; run `writetime init`")
    if ids[topic] and set(read) - {0, ids[topic]}:
        raise OtherTopic(
            f"topic {topic} is not the one that group {group} has read: it was deleted and created again, or Kafka's "
            "data was lost. The earlier messages that were not read are lost. To read the new topic from its "
            "beginning, stop the group's programs, and set its offsets with `kafka-consumer-groups.sh "
            f"--bootstrap-server {settings.kafka.bootstrap_servers} --group {group} --topic {topic} --reset-offsets "
            "--to-earliest --execute`"
        )
    return ids[topic]


def commit_offsets(settings: Settings, topic: str, group: str, offsets: Mapping[int, int], topic_id: int = 0) -> None:
    """Commit offsets for a group that has no live members. `topic_id` is the id of the topic that they belong to.
    Raises WritetimeError: the group has live members, which own its offsets.
    """
    wanted = [TopicPartition(topic, p, o, note_of_topic(topic_id)) for p, o in offsets.items()]
    with _member_of(settings, group) as consumer:
        answer = kafka.ask_cluster(
            settings, f"group {group}", lambda _: consumer.commit(offsets=wanted, asynchronous=False)
        )
    for tp in answer or []:
        if tp.error is not None:
            raise kind_of(tp.error)(
                f"{topic}/{tp.partition}: group {group} cannot commit {tp.offset}: {tp.error.str()}"
            )


def offset_fault(topic: str, partition: int, committed: int | None, first: int, end: int) -> str | None:
    """Return why a group cannot continue at the offset that it has committed for a partition, and the remedy; None if
    it can, or if it has committed nothing (None, or negative). The partition's `end` was read after the committed one.
    """
    if committed is None or committed < 0 or first <= committed <= end:
        return None
    lost = (
        f"offsets {committed} to {first - 1} were deleted by retention before they were read; these messages are lost. "
        "To continue without them,"
        if committed < first
        else f"it ends at {end}, but was read up to {committed} before: the broker has lost messages, and new "
        "messages get offsets that count as read. To read all messages again, which adds no rows,"
    )
    return f"{topic}/{partition}: {lost} set the group's offset to {first} with kafka-consumer-groups --reset-offsets"


@contextmanager
def _member_of(settings: Settings, group: str) -> Iterator[Consumer]:
    """Open a consumer that reads and sets a group's offsets, and reads no messages.

    It is not an admin client, because librdkafka's aborts the process if the group's coordinator is not available.
    """
    consumer = Consumer(kafka.client_config(settings, **{"group.id": group, "enable.auto.commit": False}))
    try:
        yield consumer
    finally:
        consumer.close()


def group_is_live(settings: Settings, group: str) -> bool:
    """Return whether a consumer group has members now."""
    described = kafka.ask_cluster(
        settings,
        f"group {group}",
        lambda admin: kafka.first_answer(
            admin.describe_consumer_groups([group], request_timeout=kafka.TIMEOUT_SECONDS)
        ),
    )
    return described.state not in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
