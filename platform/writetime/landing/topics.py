"""The Kafka topics from which changes land: those of the tables, of the schemas and of the watermarks."""

import threading
import time

from writetime.clients.kafka import has_topic, topic_ids, topic_names
from writetime.core.config import Settings
from writetime.core.errors import MissingTable
from writetime.wire.publishing import SchemaTopic
from writetime.wire.topic_names import changes_topic, table_of_topic
from writetime.wire.watermarks import WatermarkTopic

# The id of a topic is requested again after a second: no topic is deleted, created and filled in less.
ID_SECONDS = 1.0
# The id of a topic is requested with the others if it was needed within this time.
_USED_SECONDS = 10.0


def captured_tables(settings: Settings) -> list[str]:
    """Return the tables that have a topic of changes, as keyspace.table. Topics that name no table are ignored."""
    return sorted(table for topic in topic_names(settings) if (table := table_of_topic(topic)) is not None)


def no_topic(table: str) -> MissingTable:
    """Return the error of a table that has no topic."""
    return MissingTable(
        f"{changes_topic(table)} does not exist: no agent has published {table} yet. Start `writetime agent`, and "
        "check that the table has cdc = true",
        table,
    )


def is_published(settings: Settings, table: str) -> bool:
    """Return whether there is a topic of a table's changes."""
    return has_topic(settings, changes_topic(table))


class Topics:
    """The topics of the schemas and the watermarks, read once for the landings of several tables."""

    def __init__(self, settings: Settings) -> None:
        self.schemas = SchemaTopic(settings)
        self.watermarks = WatermarkTopic(settings)
        self._settings = settings
        # The id of each topic, the time of its request, and the time at which it was last needed.
        self._ids: dict[str, int] = {}
        self._asked: dict[str, float] = {}
        self._used: dict[str, float] = {}
        # Tables land in several threads.
        self._lock = threading.Lock()

    def id_of(self, topic: str) -> int:
        """Return the id of a topic of changes, at most a second old, and 0 if there is none. One request covers all
        topics that may be needed next: a request per table would delay a round over many tables.

        Raises:
            WritetimeError: Kafka does not answer, or refuses to describe the topic.
        """
        with self._lock:
            now = time.monotonic()
            self._used[topic] = now
            if now - self._asked.get(topic, -ID_SECONDS) >= ID_SECONDS:
                self._ask_with(topic, now)
            found = self._ids.get(topic)
        if found is None:
            # This topic alone, to get the reason, and so that the others do not wait for it.
            found = topic_ids(self._settings, [topic]).get(topic, 0)
        return found

    def _ask_with(self, topic: str, now: float) -> None:
        """Request the ids of a topic and of others that may be needed next."""
        asked = {each for each, at in self._used.items() if now - at < _USED_SECONDS}
        if topic not in self._asked:
            # Other topics are probably new, too.
            asked |= {changes_topic(table) for table in captured_tables(self._settings)} - self._asked.keys()
        found = topic_ids(self._settings, sorted(asked))
        self._ids = {each: known for each, known in self._ids.items() if each not in asked} | found
        self._asked |= dict.fromkeys(asked, now)
