"""The lake's record of the landing of a table: the offsets that landing has reached, the id of their topic, and the
watermarks.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from writetime.clients.kafka import beginning_offsets, end_offsets, topic_ids
from writetime.core.config import Settings
from writetime.delta.versions import TableVersion
from writetime.lake.horizon import watermark_of
from writetime.lake.table import LakeTable, table_storage
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import Sources


def place_name(topic: str, partition: int) -> str:
    """Return the name under which the lake keeps the offset that landing has reached in a partition."""
    return f"{topic}/{partition}"


def id_name(topic: str) -> str:
    """Return the name under which the lake keeps the id of the topic that these offsets belong to."""
    return f"{topic}/id"


def is_other_topic(now: TableVersion, topic: str, topic_id: int) -> bool:
    """Return whether a topic with this id (0: unknown) is not the one whose messages are in the lake."""
    known = now.transaction(id_name(topic))
    return bool(topic_id) and known is not None and known != topic_id


def landed_by(now: TableVersion, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Return the offset up to which a version of the changes has each of these partitions."""
    return {p: now.transaction(place_name(topic, p)) or 0 for p in partitions}


def landed_offsets(settings: Settings, table: str) -> dict[int, int]:
    """Return the offset of each partition of a table's changes up to which the lake has the messages: the first ones if
    the topic is not the one that was landed before. Raise a `NoTopic` if it is missing.
    """
    changes = LakeTable(table_storage(settings, table)).changes
    now = changes.load() if changes.exists() else None
    topic = changes_topic(table)
    firsts = beginning_offsets(settings, topic)
    if now is None or is_other_topic(now, topic, topic_ids(settings, [topic]).get(topic, 0)):
        return firsts
    landed = landed_by(now, topic, firsts)
    return {p: max(landed[p], first) for p, first in firsts.items()}


def not_landed(settings: Settings, table: str) -> int:
    """Return the number of messages of a table's changes that are not in the lake yet. The topic must exist."""
    landed = landed_offsets(settings, table)
    # Of these partitions only: the topic may have got another one meanwhile.
    ends = end_offsets(settings, changes_topic(table), list(landed))
    return sum(max(end - landed[p], 0) for p, end in ends.items())


class WaitingMessages(NamedTuple):
    """The messages of a table's changes that are not in the lake yet, and the largest number of seconds by which the
    lake's watermarks of the table's sources could advance.
    """

    messages: int
    seconds: float


def waiting(
    now: TableVersion | None, table: str, ends: Mapping[int, int], topic_id: int, sources: Sources
) -> WaitingMessages:
    """Return the offsets of a table that are not in the lake yet. Nothing is requested for this. The watermarks count
    without messages too: a table without writes is always up to date. `now` is the newest version of its changes, None
    if the lake does not have it, and `topic_id` 0 if it is not known. `sources` were read before the ends.
    """
    topic = changes_topic(table)
    if now is None:
        return WaitingMessages(sum(ends.values()), 0.0)
    landed = {} if is_other_topic(now, topic, topic_id) else landed_by(now, topic, ends)
    live = {name: m.tables[table].until for name, m in sources.of(table).items() if not m.retired}
    behind = max((until - watermark_of(now, name) for name, until in live.items()), default=0)
    return WaitingMessages(sum(max(end - landed.get(p, 0), 0) for p, end in ends.items()), behind / 1_000_000)
