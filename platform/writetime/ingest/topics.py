"""The topics of ingest."""

from writetime.clients.kafka import ensure_topics
from writetime.clients.topic_options import Keeps
from writetime.core.config import Settings

# The largest size of a message's headers and batch; a dead letter must have room for its original.
_ENVELOPE_BYTES = 64 * 1024


def ensure_ingest_topics(settings: Settings) -> list[str]:
    """Create the topics of events and of dead letters if they do not exist; return the names of the new ones."""
    ingest = settings.ingest
    largest = max(1024 * 1024, ingest.max_event_bytes) + _ENVELOPE_BYTES
    topics = {
        ingest.topic: {"max.message.bytes": str(largest)},
        # Dead letters wait for an operator, so they stay until they are deleted.
        ingest.dead_letter_topic: {"retention.ms": "-1", "max.message.bytes": str(largest + _ENVELOPE_BYTES)},
    }
    return ensure_topics(settings, topics, ingest.partitions)


def kept_in(settings: Settings) -> dict[str, Keeps]:
    """Return the topics of ingest, with the messages that Kafka must keep in them."""
    return {settings.ingest.topic: Keeps.UNREAD, settings.ingest.dead_letter_topic: Keeps.ALL}
