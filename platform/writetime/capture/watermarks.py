"""How far each node is captured: the compacted topic `writetime.watermarks`, with one message a node.

An agent says there until when all that its node has written is published, once the broker has acknowledged it. So
whoever reads this topic first, and asks where the topics of changes end after that, finds all of it below those ends:
a watermark names no offsets.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

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
class NodeMarks:
    """What one node's agent has published, by table. A retired node sends no more changes."""

    tables: Mapping[str, TableMark] = field(default_factory=dict)
    retired: bool = False


def ensure_watermarks_topic(settings: Settings) -> None:
    """Create the topic if it does not exist."""
    options = {"cleanup.policy": "compact", "segment.ms": str(_SEGMENT_MILLISECONDS)}
    ensure_topics(settings, {WATERMARKS_TOPIC: options}, 1)


def send(sender: Sender, node: str, marks: NodeMarks) -> None:
    """Hand over what a node's agent has published; the topic has to be there."""
    sender.produce(WATERMARKS_TOPIC, json.dumps(asdict(marks)).encode(), node.encode(), 0)


class WatermarkTopic:
    """Reads the topic, which is created if it is not there."""

    def __init__(self, settings: Settings) -> None:
        ensure_watermarks_topic(settings)
        self._topic = CompactedTopic(settings, WATERMARKS_TOPIC)
        self._marks: dict[str, NodeMarks] = {}

    def read(self) -> dict[str, NodeMarks]:
        """Return what each node's agent has said last, by the node's host id."""
        for key, value in self._topic.read_on():
            tables = {name: TableMark(**mark) for name, mark in value["tables"].items()}
            self._marks[key.decode()] = NodeMarks(tables, value["retired"])
        return dict(self._marks)


def retire(settings: Settings, node: str) -> None:
    """Say that a node, by its host id, sends no more changes: nothing waits for it any longer.

    An agent that publishes changes of the node makes it count again.

    Raises:
        WritetimeError: no agent has ever said anything of this node.
    """
    known = WatermarkTopic(settings).read()
    if node not in known:
        listed = ", ".join(sorted(n for n, marks in known.items() if not marks.retired)) or "none"
        raise WritetimeError(f"no agent has said how far node {node} is; the nodes with agents are: {listed}")
    sender = Sender(settings, "the node cannot be retired")
    send(sender, node, replace(known[node], retired=True))
    sender.flush()
