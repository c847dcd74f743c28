"""The topics of a captured table in Kafka, by the table's name as `keyspace.table`."""

from writetime.lake.table import names_table

_CHANGES, _ROW_EVENTS = "changes.", "row_events."


def changes_topic(table: str) -> str:
    """Return the topic of the changes of a table."""
    return f"{_CHANGES}{table}"


def dead_changes_topic(table: str) -> str:
    """Return the topic of the messages of a table's changes that were skipped."""
    return f"{changes_topic(table)}.dead"


def row_events_topic(table: str) -> str:
    """Return the topic of the row events of a table."""
    return f"{_ROW_EVENTS}{table}"


def table_of_topic(topic: str) -> str | None:
    """Return the table whose changes a topic has; None if it is another topic."""
    table = topic.removeprefix(_CHANGES)
    return table if topic.startswith(_CHANGES) and names_table(table) else None
