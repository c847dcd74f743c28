"""Gaps in a table's topic of changes: messages that Kafka no longer has, and that have not landed.

Landing stops at each, until an operator accepts it: the topic is another one (`landed_offsets.is_other_topic`) or
`ends_early`, it begins after what has landed (`require_beginning`), or it lacks messages (`missing_messages`, which
`landing.tasks` raises).
"""

from collections.abc import Mapping

from writetime.clients.kafka import end_offsets
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.wire.topic_names import changes_topic


def ends_early(settings: Settings, topic: str, landed: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Return whether a topic ends before the offsets that have landed."""
    if all(landed[p] <= end for p, end in ends.items()):
        return False
    # Another process may have landed more since these ends were read.
    newest = end_offsets(settings, topic)
    return any(offset > newest.get(p, 0) for p, offset in landed.items())


def replaced_topic(table: str) -> WritetimeError:
    """Return the error of a table whose topic is another one, or `ends_early`."""
    return WritetimeError(
        f"topic {changes_topic(table)} is not the one that was landed before: Kafka's data was lost, or the topic was "
        f"deleted. Its messages that had not landed are lost. {_remedy(table)}"
    )


def require_beginning(table: str, landed: Mapping[int, int], firsts: Mapping[int, int]) -> None:
    """Raise `WritetimeError` if a partition begins after the offset up to which it has landed."""
    for p, first in firsts.items():
        if landed[p] < first:
            raise WritetimeError(
                f"topic {changes_topic(table)}, partition {p} begins at offset {first}, and the messages from "
                f"{landed[p]} on were not landed: they are gone. {_remedy(table)}"
            )


def missing_messages(table: str, partition: int, start: int, end: int) -> WritetimeError:
    """Return the error of a partition that lacks messages from one offset up to, not including, another one."""
    return WritetimeError(
        f"topic {changes_topic(table)}, partition {partition}: Kafka no longer has the messages from {start} to "
        f"{end - 1}, which were not landed. First repair the option of the topic that `writetime check` names. "
        f"{_remedy(table)}"
    )


def _remedy(table: str) -> str:
    return (
        f"Take a new snapshot of every node now, bring them in with `writetime backfill {table}`, then continue with "
        f"`writetime land {table} --accept-gap`"
    )
