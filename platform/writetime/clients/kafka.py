"""Kafka clients, and requests for topics and their end offsets."""

import functools
import logging
import os
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from writetime.clients.kafka_errors import ASK_AGAIN, NO_ANSWER, WITHOUT_LEADER, kind_of, may_pass
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.core.logs import KAFKA_CLIENT
from writetime.core.waiting import wait_until

_T = TypeVar("_T")
_client_log = logging.getLogger(KAFKA_CLIENT)


class NoTopic(WritetimeError):
    """There is no such topic."""


class UnreadableHeaders(ValueError):
    """A header of a message has a name that is not UTF-8."""


TIMEOUT_SECONDS = 15.0
DAY_MS = 86_400_000
_REASON_SECONDS = 1.0
# A client reports a timeout shortly after the request has timed out.
_GRACE_SECONDS = 5.0
_PAUSE_SECONDS = 0.05
# Delta stores signed 64-bit numbers, so 63 bits remain.
_LARGEST_ID = 2**63 - 1
# Python checks that a C function has not both returned and failed, except in the fast path of a plain
# `message.headers()`.
_get_headers = methodcaller("headers")


def client_config(settings: Settings, **own: Any) -> dict[str, Any]:
    """Return the configuration of a confluent-kafka client: brokers, the settings' client options, then `own`.

    librdkafka would print its log. With a logger, it hands over the lines when the client is polled or flushed. Raises
    WritetimeError: a client rejects an option of the settings.
    """
    common = {
        "bootstrap.servers": settings.kafka.bootstrap_servers,
        "logger": _client_log,
        # Without this, a request for a missing topic may create it, with the options of the brokers.
        "allow.auto.create.topics": False,
    }
    options = {name: value.get_secret_value() for name, value in settings.kafka.client.items()}
    _require_accepted(tuple(options.items()))
    return common | options | own


# Each client would report an invalid option when it is created, without the name of the setting.
@functools.cache
def _require_accepted(options: tuple[tuple[str, str], ...]) -> None:
    if not options:
        return
    try:
        # An admin client checks the options of producers.
        AdminClient({**dict(options), "log_level": 0})
        Consumer({**dict(options), "group.id": "check", "log_level": 0}).close()
    except (KafkaException, TypeError, ValueError) as e:
        reason = e.args[0].str() if isinstance(e, KafkaException) else str(e)
        raise WritetimeError(
            f"kafka.client: {reason}; librdkafka's CONFIGURATION.md lists the options and their values"
        ) from None


def ensure_topics(settings: Settings, topics: Mapping[str, Mapping[str, str]], partitions: int) -> list[str]:
    """Create the topics that do not exist, and wait until brokers list them all. Each gets its own options, and for the
    others the values of `new_topic_options`. Return the names of those that were created.
    """
    # This request also shows the client which broker is the controller now.
    there = set(topic_names(settings))
    replicas, common = settings.kafka.replication_factor, new_topic_options(settings)
    new = [NewTopic(t, partitions, replicas, config={**common, **o}) for t, o in topics.items() if t not in there]
    if not new:
        return []
    admin = _admin(settings)
    answers = admin.create_topics(new, request_timeout=TIMEOUT_SECONDS)
    created = _changed(settings, "created", answers, KafkaError.TOPIC_ALREADY_EXISTS)
    # A broker may report a topic as created before it lists the topic itself.
    if not wait_until(lambda: set(topics) <= set(topic_names(settings)), TIMEOUT_SECONDS, _PAUSE_SECONDS):
        names = ", ".join(topics)
        raise Transient(f"topics were created, and brokers do not list all after {TIMEOUT_SECONDS:.0f} s: {names}")
    return created


def _changed(settings: Settings, what: str, answers: Mapping[str, Future[None]], is_done: int) -> list[str]:
    """Return the topics that a request has changed. `is_done` is the error of those that others have changed before."""
    changed = []
    for name, future in answers.items():
        try:
            answer_of(future)
            changed.append(name)
        except KafkaException as e:
            if e.args[0].code() != is_done:
                raise fault_of(settings, f"topic {name} cannot be {what}", e) from None
    return changed


def new_topic_options(settings: Settings) -> dict[str, str]:
    """Return the options of new topics. A guarantee rests on each of them, so none is left to the brokers' defaults."""
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(round(settings.kafka.retention_days * DAY_MS)),
        "retention.bytes": "-1",
        # Kafka's own default.
        "max.message.bytes": "1048588",
        # The broker keeps a message as the client has compressed it. Otherwise it could be too large only there.
        "compression.type": "producer",
        # A batch must fit into a segment.
        "segment.bytes": str(1 << 30),
        # Retention counts from the arrival, and no clock of a client makes the broker refuse or delete a message.
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(majority(settings.kafka.replication_factor)),
        "unclean.leader.election.enable": "false",
        # How long readers of a compacted topic can see that a key was deleted.
        "delete.retention.ms": str(DAY_MS),
    }


def majority(replicas: int) -> int:
    """Return how many replicas must have a message before its acknowledgement."""
    return replicas // 2 + 1


def delete_topics(settings: Settings, topics: Sequence[str]) -> None:
    """Delete topics, and wait until brokers no longer list them. Raises WritetimeError: Kafka refuses it, or does not
    answer.
    """
    admin = _admin(settings)
    answers = admin.delete_topics(list(topics), request_timeout=TIMEOUT_SECONDS)
    _changed(settings, "deleted", answers, KafkaError.UNKNOWN_TOPIC_OR_PART)
    if not wait_until(lambda: set(topics).isdisjoint(topic_names(settings)), TIMEOUT_SECONDS, _PAUSE_SECONDS):
        names = ", ".join(topics)
        raise Transient(f"topics were deleted, and brokers still list some after {TIMEOUT_SECONDS:.0f} s: {names}")


def topic_names(settings: Settings) -> list[str]:
    """Return the names of all topics. Raises WritetimeError: no broker answers."""
    return ask_cluster(settings, "topics", lambda admin: sorted(admin.list_topics(timeout=TIMEOUT_SECONDS).topics))


def partitions_of(settings: Settings, topic: str) -> list[int]:
    """Return the partitions of a topic. Raises WritetimeError: there is no such topic, or no broker answers."""

    def ask(admin: AdminClient) -> list[int]:
        described = admin.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
        if described.error is not None:
            raise KafkaException(described.error)
        return sorted(described.partitions)

    return ask_cluster(settings, f"topic {topic}", ask)


def topic_ids(settings: Settings, topics: Sequence[str]) -> dict[str, int]:
    """Return a number for each of these topics that exists: 63 bits of the random id that a topic gets when it is
    created (KIP-516). A topic that was deleted and created again has another one. 0 if the broker gives topics no ids.
    Of several, those that Kafka refuses to describe are left out. Raises WritetimeError: no broker answers, or Kafka
    refuses to describe the only topic.
    """

    def ask(admin: AdminClient) -> dict[str, int]:
        found = {}
        asked = TopicCollection(list(topics))
        for name, future in admin.describe_topics(asked, request_timeout=TIMEOUT_SECONDS).items():
            try:
                found[name] = answer_of(future).topic_id.get_most_significant_bits() & _LARGEST_ID
            except KafkaException as e:
                if len(topics) == 1 and e.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    return ask_cluster(settings, "ids of topics", ask) if topics else {}


def has_topic(settings: Settings, topic: str) -> bool:
    """Return whether there is a topic. Unlike `topic_names`, this requests nothing about other topics. Raises
    WritetimeError: no broker answers, or Kafka refuses to describe the topic.
    """
    return topic in topic_ids(settings, [topic])


def max_message_bytes(settings: Settings, topic: str) -> int:
    """Return the largest message size of a topic. Raises NoTopic: there is no such topic; WritetimeError: no broker
    answers, or Kafka refuses to describe the topic.
    """
    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic)]
    options = ask_cluster(
        settings,
        f"topic {topic}",
        lambda admin: first_answer(admin.describe_configs(asked, request_timeout=TIMEOUT_SECONDS)),
    )
    # Kafka refuses a batch that is larger than a segment.
    return min(int(options[name].value) for name in ("max.message.bytes", "segment.bytes"))


def beginning_offsets(settings: Settings, topic: str, partitions: Sequence[int] | None = None) -> dict[int, int]:
    """Return the first offset that each partition, or each of some known partitions, still has."""
    return _offsets(settings, topic, OffsetSpec.earliest(), partitions)


def end_offsets(settings: Settings, topic: str, partitions: Sequence[int] | None = None) -> dict[int, int]:
    """Return the offset after the last readable message (of no open transaction) of each partition, or of some known
    partitions. Raises NoTopic: there is no such topic; WritetimeError: no broker answers.
    """
    return _offsets(settings, topic, OffsetSpec.latest(), partitions)


def next_offsets(settings: Settings, topic: str) -> dict[int, int]:
    """Return the offset of the next message of each partition. Earlier messages may be of open transactions, or of
    committed ones that are not readable yet. Raises NoTopic: there is no such topic; WritetimeError: no broker answers.
    """
    return _offsets(settings, topic, OffsetSpec.latest(), isolation=IsolationLevel.READ_UNCOMMITTED)


@dataclass(frozen=True)
class TopicEnds:
    """The end offsets of topics by partition, and why those of others are not known at the moment, by the topics'
    names; and the id of the cluster, if it is known.
    """

    ends: Mapping[str, Mapping[int, int]]
    faults: Mapping[str, WritetimeError]
    cluster: str | None


def ends_of_topics(settings: Settings, wanted: Callable[[str], bool]) -> TopicEnds:
    """Return the end offsets, as `end_offsets` does, of all topics with requested names, with two requests in total.
    Raises WritetimeError: no broker answers.
    """

    def ask(admin: AdminClient) -> tuple[str | None, dict[str, dict[int, int]], dict[str, KafkaException]]:
        listed = admin.list_topics(timeout=TIMEOUT_SECONDS)
        request = {TopicPartition(t, p): latest for t, of in listed.topics.items() if wanted(t) for p in of.partitions}
        ends: dict[str, dict[int, int]] = {}
        refused: dict[str, KafkaException] = {}
        answers = request and admin.list_offsets(
            request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_SECONDS
        )
        for tp, future in answers.items():
            try:
                ends.setdefault(tp.topic, {})[tp.partition] = _offset_of(future)
            except KafkaException as e:
                refused.setdefault(tp.topic, _of_listed(e))
        if refused and len(refused) == len(ends.keys() | refused.keys()):
            # No other topic waits while this is repeated.
            raise next(iter(refused.values()))
        return listed.cluster_id, ends, refused

    latest: Any = OffsetSpec.latest()
    cluster, ends, refused = ask_cluster(settings, "offsets of topics", ask)
    for error in refused.values():
        _forget_leaders(error)
    faults = {name: fault_of(settings, f"offsets of topic {name}", e) for name, e in refused.items()}
    return TopicEnds({name: known for name, known in ends.items() if name not in faults}, faults, cluster)


def offsets_at(settings: Settings, topic: str, at: float) -> dict[int, int]:
    """Return the offset of the first message of each partition that is not older than `at`, in seconds since 1970.

    If all are older, it is the offset after the last message.
    """
    found = _offsets(settings, topic, OffsetSpec.for_timestamp(int(at * 1000)))
    ends = end_offsets(settings, topic)
    return {p: ends[p] if offset < 0 else offset for p, offset in found.items()}


def messages_between(
    settings: Settings, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> Generator[Message, None, None]:
    """Yield the messages of a topic from the start up to, not including, the end of each partition; commit nothing. A
    caller that may leave it early closes it, as with `contextlib.closing`. Raises WritetimeError: the topic cannot be
    read, or has lost these messages.
    """
    own = {
        "group.id": "writetime-reader",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        # All messages have been read. The broker would hold a request for more for half a second, which would delay
        # the next read by this consumer.
        "fetch.wait.max.ms": 5,
    }
    configuration = client_config(settings, **own)
    idle = _idle_readers(os.getpid(), tuple(configuration.items()))
    try:
        # Threads share them.
        consumer = idle.pop()
    except IndexError:
        consumer = Consumer(configuration)
    try:
        unread = {p for p in ends if starts[p] < ends[p]}
        consumer.assign([TopicPartition(topic, p, starts[p]) for p in unread])
        while unread:
            message = _next_message(consumer, topic, unread)
            is_end = message.error() is not None
            partition, offset = place_of(message)
            if not is_end and offset < ends[partition]:
                yield message
            # The offset shows the end of a partition, past control records that are not messages.
            if offset + (not is_end) >= ends[partition]:
                unread.discard(partition)
        consumer.unassign()
    except BaseException:
        consumer.close()
        raise
    idle.append(consumer)


def _next_message(consumer: Consumer, topic: str, unread: Collection[int]) -> Message:
    """Return the next message of some partitions, or the end of one, which has an error as a mark. Raises Transient:
    none came in time; WritetimeError: the consumer reports an error that does not pass by itself.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    last = ""
    while (left := deadline - time.monotonic()) > 0:
        message = consumer.poll(left)
        if message is None:
            continue
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return message
        if not may_pass(error):
            partition = message.partition()
            raise WritetimeError(f"{_unread(topic, unread if partition is None else [partition])}: {error.str()}")
        # The client connects again, and finds new leaders, by itself. Other brokers may answer.
        last = f", {error.str()}"
    raise Transient(f"{_unread(topic, unread)}: no answer for {TIMEOUT_SECONDS:.0f} s{last}")


def _unread(topic: str, partitions: Collection[int]) -> str:
    noun = "partition" if len(partitions) == 1 else "partitions"
    return f"topic {topic} cannot be read, {noun} {', '.join(map(str, sorted(partitions)))}"


def answer_of(future: Future[_T], grace_seconds: float = _GRACE_SECONDS) -> _T:
    """Return the answer to a request of an admin client. The caller must hold the client until then: without it the
    answer is lost, and other threads may drop the cached client. Raises KafkaException: the request failed, or no
    answer came in time.
    """
    try:
        return future.result(TIMEOUT_SECONDS + grace_seconds)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the client has reported no answer")) from None


def place_of(message: Message) -> tuple[int, int]:
    """Return partition and offset of a delivered message."""
    partition, offset = message.partition(), message.offset()
    if partition is None or offset is None:
        raise ValueError(f"a message of topic {message.topic()} was not delivered by a broker")
    return partition, offset


def headers_of(message: Message) -> list[tuple[str, bytes]]:
    """Return the headers of a delivered message in their order; a missing value is returned as an empty one. Raises
    UnreadableHeaders: the client cannot return the headers. It is raised once; from then on the message has none.
    """
    try:
        headers = _get_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        # confluent-kafka 2.16 (c_headers_to_py) stores a null pointer for such a name and keeps the list. Reading that
        # list ends the process.
        message.set_headers([])
        raise UnreadableHeaders("the name of a header is not UTF-8") from None
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name, value.encode() if isinstance(value, str) else value or b"") for name, value in pairs]


def answers(settings: Settings) -> bool:
    """Return whether a broker answers within a second."""
    try:
        # At another log level, the client would print each of its many attempts to connect.
        client = AdminClient(client_config(settings, log_level=0))
        return bool(client.list_topics(timeout=_REASON_SECONDS).brokers)
    except KafkaException:
        return False


def fault_of_connections(settings: Settings) -> str | None:
    """Return why no broker can be reached, such as a rejected certificate; None if there is no report within a second.

    Failed requests do not have the reason: librdkafka reports it separately.
    """
    found: list[KafkaError] = []
    client = AdminClient(client_config(settings, log_level=0, error_cb=found.append))
    deadline = time.monotonic() + _REASON_SECONDS
    while not found and time.monotonic() < deadline:
        client.poll(0.1)
    return found[0].str() if found else None


def _offsets(
    settings: Settings,
    topic: str,
    spec: Any,
    partitions: Sequence[int] | None = None,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[int, int]:
    known = partitions_of(settings, topic) if partitions is None else partitions
    request = {TopicPartition(topic, p): spec for p in known}

    def ask(admin: AdminClient) -> dict[int, int]:
        futures = admin.list_offsets(request, isolation_level=isolation, request_timeout=TIMEOUT_SECONDS)
        try:
            return {tp.partition: _offset_of(future) for tp, future in futures.items()}
        except KafkaException as e:
            if e.args[0].code() == KafkaError._NOENT:
                # Kafka also reports this error if there is no such topic.
                partitions_of(settings, topic)
            raise

    return ask_cluster(settings, f"offsets of topic {topic}", ask)


def _of_listed(error: KafkaException) -> KafkaException:
    """Return the error of a topic that is listed. If a broker does not know it, the topic is new there, or is being
    deleted.
    """
    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        return error
    return KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "a broker does not know the topic yet"))


def _offset_of(answer: Future[Any]) -> int:
    """Return the offset of a ListOffsets answer. For a partition without a leader, the answer has no error, only an
    invalid offset (librdkafka 2.16, `rd_kafka_ListOffsets_leaders_queried_cb`).
    """
    offset = answer_of(answer).offset
    if offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "a partition has no leader"))
    return offset


def ask_cluster(settings: Settings, what: str, question: Callable[[AdminClient], _T]) -> _T:
    """Send a request to the cluster; repeat it while the topic or group is being created or moved. Raises NoTopic:
    there is no such topic; WritetimeError: no broker answers, or Kafka refuses it; `what` names the request.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        admin = _admin(settings)
        try:
            return question(admin)
        except KafkaException as e:
            if e.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise NoTopic(f"{what} does not exist; run `writetime init`") from None
            _forget_leaders(e)
            if e.args[0].code() not in ASK_AGAIN or time.monotonic() > deadline:
                raise fault_of(settings, what, e) from None
        finally:
            # A poll delivers the client's log lines.
            admin.poll(0)
        time.sleep(0.1)


def _forget_leaders(error: KafkaException) -> None:
    """Use a new client for the next request, if a partition had no leader.

    A client caches that for up to 15 minutes (librdkafka 2.16, `rd_kafka_topic_partition_list_get_leaders`), although
    Kafka elects a new leader within seconds.
    """
    if error.args[0].code() in WITHOUT_LEADER:
        _admin_of.cache_clear()


def first_answer(futures: Mapping[Any, Future[Any]]) -> Any:
    """Return the answer of the only future of a request, or raise its error."""
    return answer_of(next(iter(futures.values())))


def _admin(settings: Settings) -> AdminClient:
    return _admin_of(tuple(client_config(settings).items()))


# Kept, because a connection costs more than a small batch.
@functools.cache
def _idle_readers(_process: int, _configuration: tuple[tuple[str, Any], ...]) -> list[Consumer]:
    return []


# Kept, because pending answers are lost with the client.
@functools.cache
def _admin_of(configuration: tuple[tuple[str, Any], ...]) -> AdminClient:
    return AdminClient(dict(configuration))


def fault_of(settings: Settings, what: str, error: KafkaException) -> WritetimeError:
    """Return the error for users of a request that failed; `what` names the request."""
    fault, brokers = error.args[0], settings.kafka.bootstrap_servers
    if fault.code() in NO_ANSWER:
        return Transient(
            f"{what}: no broker answers at {brokers} ({fault_of_connections(settings) or fault.str()}); start the "
            "embedded servers with `writetime up`, or set kafka.bootstrap_servers and kafka.client"
        )
    return kind_of(fault)(f"{what}: {fault.name()} {fault.str()} (brokers {brokers})")
