"""How far each source is captured: the compacted topic `writetime.watermarks`, with one message a source.

A source is a node, by its host id, or the CDC log of a ScyllaDB table, by the log's name. An agent says there until
when all that was written to it is published, once the broker has acknowledged it. So whoever reads this topic first,
and asks where the topics of changes end after that, finds all of it below those ends: a watermark names no offsets.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from writetime.config import Settings
from writetime.errors import WritetimeError
from writetime.kafka import ensure_topics
from writetime.publishing import CompactedTopic, Sender

WATERMARKS_TOPIC = "writetime.watermarks"

# Messages come every few seconds, and Kafka compacts only what is not in a topic's newest segment.
_SEGMENT_MILLISECONDS = 3_600_000


@dataclass(frozen=True)
class TableMark:
    """Of one table (instants in microseconds): all that was written before `until` is published, 0 if that is not
    known; and when the snapshot was taken that is published, or is to be now, 0 if there is none."""

    until: int
    snapshot_at: int = 0


@dataclass(frozen=True)
class SourceMarks:
    """What is published of one source, by table. A retired source sends no more changes.

    `status` is what its agent says of itself, see `metrics`."""

    tables: Mapping[str, TableMark] = field(default_factory=dict)
    retired: bool = False
    status: Mapping[str, Any] = field(default_factory=dict)


def ensure_watermarks_topic(settings: Settings) -> None:
    """Create the topic if it does not exist."""
    options = {"cleanup.policy": "compact", "segment.ms": str(_SEGMENT_MILLISECONDS)}
    ensure_topics(settings, {WATERMARKS_TOPIC: options}, 1)


def send(sender: Sender, source: str, marks: SourceMarks) -> None:
    """Hand over what is published of a source; the topic has to be there."""
    sender.produce(WATERMARKS_TOPIC, json.dumps(asdict(marks)).encode(), source.encode(), 0)


def statuses(settings: Settings) -> dict[str, Mapping[str, Any]]:
    """Return what the agent of each source that is not retired said last of itself, by the source's name."""
    found = WatermarkTopic(settings).read()
    return {source: marks.status for source, marks in sorted(found.items()) if marks.status and not marks.retired}


class WatermarkTopic:
    """Reads the topic, which is created if it is not there."""

    def __init__(self, settings: Settings) -> None:
        ensure_watermarks_topic(settings)
        self._topic = CompactedTopic(settings, WATERMARKS_TOPIC)
        self._marks: dict[str, SourceMarks] = {}

    def read(self) -> dict[str, SourceMarks]:
        """Return what was said last of each source, by its name."""
        for key, value in self._topic.read_on():
            tables = {name: TableMark(**mark) for name, mark in value["tables"].items()}
            self._marks[key.decode()] = SourceMarks(tables, value["retired"], value.get("status", {}))
        return dict(self._marks)


def retire(settings: Settings, source: str) -> None:
    """Say that a source, by its name, sends no more changes: nothing waits for it any longer.

    An agent that publishes changes of it makes it count again.

    Raises:
        WritetimeError: no agent has ever said anything of this source.
    """
    known = WatermarkTopic(settings).read()
    if source not in known:
        listed = ", ".join(sorted(n for n, marks in known.items() if not marks.retired)) or "none"
        raise WritetimeError(f"no agent has said how far {source} is; the nodes and logs with agents are: {listed}")
    sender = Sender(settings, f"{source} cannot be retired")
    send(sender, source, replace(known[source], retired=True))
    sender.flush()
