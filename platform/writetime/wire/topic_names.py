"""The topics of a captured table in Kafka, by the table's name as `keyspace.table`."""

from writetime.clients.topic_options import Keeps
from writetime.lake.table import names_table

_CHANGES, _ROW_EVENTS, _DEAD = "changes.", "row_events.", ".dead"


def changes_topic(table: str) -> str:
    """Return the topic of the changes of a table."""
    return f"{_CHANGES}{table}"


def dead_changes_topic(table: str) -> str:
    """Return the topic of the messages of a table's changes that were skipped."""
    return f"{changes_topic(table)}{_DEAD}"


def row_events_topic(table: str) -> str:
    """Return the topic of the row events of a table."""
    return f"{_ROW_EVENTS}{table}"


def table_of_topic(topic: str) -> str | None:
    """Return the table whose changes a topic has; None if it is another topic."""
    table = topic.removeprefix(_CHANGES)
    return table if topic.startswith(_CHANGES) and names_table(table) else None


def keeps_of(topic: str) -> Keeps | None:
    """Return the messages that Kafka must keep in a topic of a captured table; None if it is another topic."""
    if table_of_topic(topic) is not None:
        return Keeps.UNREAD
    if topic.endswith(_DEAD) and table_of_topic(topic.removesuffix(_DEAD)) is not None:
        return Keeps.ALL
    table = topic.removeprefix(_ROW_EVENTS)
    return Keeps.CHOSEN if topic.startswith(_ROW_EVENTS) and names_table(table) else None
