"""The errors of Kafka that may pass by themselves, and those after which a request is repeated at once."""

from confluent_kafka import KafkaError

from writetime.core.errors import Transient, WritetimeError

NO_ANSWER = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})
"""No broker has answered."""
WITHOUT_LEADER = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._NOENT,
        # The client has cached an earlier leader, or the leader in a cluster that has lost its data.
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        # The leader has no address for clients yet.
        KafkaError.LISTENER_NOT_FOUND,
    }
)
"""A partition has no leader while Kafka elects one. librdkafka's ListOffsets then returns `_NOENT`."""
# The partition has a leader, which does not know the partition's end or its own replica yet.
_NEW_LEADER = frozenset({KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE})
ASK_AGAIN = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        *WITHOUT_LEADER,
        *_NEW_LEADER,
    }
)
"""Answers of a cluster in which a topic, a group or a broker is being created or moved."""
# Errors of brokers that are down, incomplete, or moving a group or a topic. librdkafka has given up by then, and calls
# none of these retriable.
_MAY_PASS = NO_ANSWER | {
    KafkaError._MSG_TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._DESTROY,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_CONTROLLER,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.REBALANCE_IN_PROGRESS,
    *WITHOUT_LEADER,
    *_NEW_LEADER,
}


def may_pass(error: KafkaError) -> bool:
    """Return whether an error may pass by itself, such as a broker that does not answer; errors of authorization and
    configuration do not.
    """
    return error.retriable() or error.code() in _MAY_PASS


def kind_of(error: KafkaError) -> type[WritetimeError]:
    """Return the class of the exception for an error."""
    return Transient if may_pass(error) else WritetimeError
