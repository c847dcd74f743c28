"""The options of Kafka topics that guarantees rest on: each new topic gets them, and existing topics are checked.

No guarantee rests on a broker's default. A topic that an operator or a broker has created, or altered since, may break
one: Kafka then deletes messages that are still needed, or accepts none. Source: Kafka's documentation of its topic
configurations, https://kafka.apache.org/documentation/#topicconfigs.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource

from writetime.clients.kafka import DAY_MS, TIMEOUT_SECONDS, answer_of, ask_cluster, fault_of, majority
from writetime.clients.kafka_errors import ASK_AGAIN, NO_ANSWER
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError

# The least retention of messages that a program still has to read: an outage at night must not cost messages.
_LEAST_RETENTION_MS = DAY_MS
# The largest message of a client with Kafka's default `max.request.size`.
LEAST_MESSAGE_BYTES = 1_000_000
_CLOCKS_MS = 3_600_000


class Keeps(Enum):
    """The messages that Kafka must keep in a topic."""

    UNREAD = "until they are read"
    ALL = "until an operator deletes them"
    LATEST = "the last message of each key"
    CHOSEN = "as the operator has chosen"
    """Other programs read them. Only the defaults of brokers count as faults."""


@dataclass(frozen=True)
class OptionFault:
    """An option of a topic that breaks a guarantee, with the command that repairs it. If it `is_lossy`, no message must
    be sent to the topic: messages would be lost after their acknowledgement, or none is ever acknowledged.
    """

    topic: str
    option: str
    value: str
    needed: str
    effect: str
    command: str
    is_lossy: bool

    def __str__(self) -> str:
        return (
            f"topic {self.topic} has {self.option}={self.value}, so {self.effect}: it needs {self.needed}; "
            f"set it with {self.command}"
        )


@dataclass(frozen=True)
class _Described:
    """The options of a topic, those that were set on the topic itself, and its smallest number of replicas."""

    values: Mapping[str, str]
    own: frozenset[str]
    replicas: int


def faults_of(
    settings: Settings, topics: Mapping[str, Keeps], least_bytes: int = LEAST_MESSAGE_BYTES
) -> dict[str, list[OptionFault] | WritetimeError]:
    """Return the faults of each of these topics that exists, or why its options cannot be read. Two requests are sent,
    about these topics only. `least_bytes` is the largest message that they must accept. Raises WritetimeError: no
    broker answers.
    """
    found: dict[str, list[OptionFault] | WritetimeError] = {}
    for topic, described in _describe(settings, list(topics)).items():
        if isinstance(described, WritetimeError):
            found[topic] = described
        else:
            found[topic] = [
                OptionFault(topic, name, described.values[name], needed, effect, command, is_lossy)
                for name, needed, effect, is_lossy in _broken(described, topics[topic], least_bytes)
                for command in [command_to_set(settings, topic, name, needed.split()[-1])]
            ]
    return found


def lossy_faults(
    settings: Settings,
    topics: Mapping[str, Keeps],
    log: logging.Logger | None = None,
    least_bytes: int = LEAST_MESSAGE_BYTES,
) -> list[OptionFault]:
    """Return the lossy faults of topics, see `faults_of`. With `log`, log the others, and why options cannot be read.
    Raises WritetimeError: no broker answers.
    """
    lossy = []
    for found in faults_of(settings, topics, least_bytes).values():
        for fault in [found] if isinstance(found, WritetimeError) else found:
            if isinstance(fault, OptionFault) and fault.is_lossy:
                lossy.append(fault)
            elif log is not None:
                log.warning("%s", fault)
    return lossy


def command_to_set(settings: Settings, topic: str, option: str, value: str) -> str:
    """Return the shell command that sets an option of a topic, in backquotes."""
    return (
        f"`kafka-configs.sh --bootstrap-server {settings.kafka.bootstrap_servers} --alter --entity-type topics "
        f"--entity-name {topic} --add-config {option}={value}`"
    )


def _broken(topic: _Described, keeps: Keeps, least_bytes: int) -> Iterator[tuple[str, str, str, bool]]:
    """Yield each option of a topic that breaks a guarantee: its name, the value that it needs, the effect, and whether
    it is lossy. The needed value ends with the one to set.
    """
    for each in (*_deletions(topic, keeps), *_copies(topic), *_refusals(topic, least_bytes)):
        if keeps is not Keeps.CHOSEN or each[0] not in topic.own:
            yield each


def _deletions(topic: _Described, keeps: Keeps) -> Iterator[tuple[str, str, str, bool]]:
    policies = set(topic.values["cleanup.policy"].split(",")) - {""}
    if keeps is Keeps.LATEST:
        if policies != {"compact"}:
            yield "cleanup.policy", "compact", "Kafka deletes messages that are still needed", True
        return
    if "compact" in policies:
        yield "cleanup.policy", "delete", "Kafka keeps only the last message of each key", True
    if "delete" not in policies:
        return
    milliseconds = int(topic.values["retention.ms"])
    if keeps is Keeps.ALL and milliseconds >= 0:
        effect = "Kafka deletes messages before an operator does"
        yield "retention.ms", "-1", effect, milliseconds < _LEAST_RETENTION_MS
    elif 0 <= milliseconds < _LEAST_RETENTION_MS:
        effect = "Kafka may delete messages before they are read"
        yield "retention.ms", f"at least {_LEAST_RETENTION_MS}", effect, True
    if int(topic.values["retention.bytes"]) >= 0:
        yield "retention.bytes", "-1", "Kafka deletes messages that were not read, however new they are", True


def _copies(topic: _Described) -> Iterator[tuple[str, str, str, bool]]:
    wanted, least = int(topic.values["min.insync.replicas"]), majority(topic.replicas)
    if wanted > topic.replicas:
        effect = f"Kafka accepts no message, as the topic has {pluralize(topic.replicas, 'replica')}"
        yield "min.insync.replicas", f"at most {least}", effect, True
    elif wanted < least:
        effect = f"a message is acknowledged that only {wanted} of {topic.replicas} replicas have"
        yield "min.insync.replicas", f"at least {least}", effect, False
    if topic.replicas > 1 and topic.values["unclean.leader.election.enable"] == "true":
        effect = "Kafka may drop acknowledged messages when it elects a leader"
        yield "unclean.leader.election.enable", "false", effect, True


def _refusals(topic: _Described, least_bytes: int) -> Iterator[tuple[str, str, str, bool]]:
    for name in ("max.message.bytes", "segment.bytes"):
        if int(topic.values[name]) < least_bytes:
            yield name, f"at least {least_bytes}", "Kafka refuses larger messages", False
    if topic.values["message.timestamp.type"] == "CreateTime":
        limits = {name: topic.values.get(f"message.timestamp.{name}.max.ms") for name in ("before", "after")}
        for name, limit in limits.items():
            if limit is not None and int(limit) < _CLOCKS_MS:
                effect = "Kafka refuses messages of a machine whose clock differs from its own"
                yield f"message.timestamp.{name}.max.ms", f"at least {_CLOCKS_MS}", effect, False


def _describe(settings: Settings, topics: Sequence[str]) -> dict[str, _Described | WritetimeError]:
    """Return the options of the topics that exist, or why they cannot be read."""

    def question(admin: AdminClient) -> dict[str, _Described | WritetimeError]:
        asked = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        configs = admin.describe_configs(asked, request_timeout=TIMEOUT_SECONDS)
        places = admin.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_SECONDS)
        found: dict[str, _Described | WritetimeError] = {}
        for resource, answer in configs.items():
            topic = str(resource.name)
            try:
                found[topic] = _described(answer_of(answer), answer_of(places[topic]))
            except KafkaException as e:
                code = e.args[0].code()
                if code in NO_ANSWER | ASK_AGAIN:
                    raise
                if code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    what = (
                        f"the options of topic {topic} cannot be checked; Writetime's user needs the rights Describe "
                    )
                    found[topic] = fault_of(settings, f"{what}and DescribeConfigs on it", e)
        return found

    return ask_cluster(settings, "options of topics", question) if topics else {}


def _described(options: Mapping[str, Any], topic: Any) -> _Described:
    own = {name for name, entry in options.items() if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}
    values = {name: entry.value or "" for name, entry in options.items()}
    replicas = min((len(partition.replicas) for partition in topic.partitions), default=1)
    return _Described(values, frozenset(own), replicas)
