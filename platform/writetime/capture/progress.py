"""The published position of each segment, and the counts of its mutations, in one file, `progress.json`.

Positions and counts are written in one step, after the broker has acknowledged the changes. So after a crash, an agent
continues at the saved position, repeats at most the unsaved part, and counts each mutation once.
"""

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from writetime.capture.state_files import damaged, lock_and_read, read_json, write_json
from writetime.core.errors import WritetimeError

_FILE = "progress.json"
# An agent writes these files after its first progress.
_LATER_FILES = NODE_FILE, SNAPSHOTS_FILE = "node.json", "snapshots.json"

# End of a gap that may get longer.
OPEN = 2**63 - 1


class OtherNode(WritetimeError):
    """The node at the address is not the one of the state folder."""


@dataclass(frozen=True)
class SegmentProgress:
    """The progress of one segment: the offset up to which it is published, and the marker to continue from.

    `mutations` is the number of mutations that were read. `set_aside` counts those that were not read to their ends, by
    the faulty table; the last one was written at `set_aside_at` (microseconds). `decoded` counts the changes in the
    mutations, and `published` those that are acknowledged. `reason` is why the segment must be set aside. A `broken`
    segment cannot be read further. It is `finished` when nothing more must be read from it, and `kept` if it stays (by
    the setting `capture.finished`, the action on such a segment). `lacking` are the ids of the tables with missing
    changes; None if any table may have some.
    """

    name: str
    position: int = 0
    place: tuple[int, int] | None = None
    mutations: int = 0
    decoded: int = 0
    published: int = 0
    set_aside: dict[str, int] = field(default_factory=dict)
    set_aside_at: int = 0
    reason: str | None = None
    broken: bool = False
    finished: bool = False
    kept: bool = False
    lacking: list[str] | None = field(default_factory=list)

    def without(self, reason: str, tables: Iterable[UUID | None] | None) -> "SegmentProgress":
        """Return this progress with the reason why changes of some tables are missing (None: of any table)."""
        if tables is None or self.lacking is None:
            return replace(self, reason=self.reason or reason, lacking=None)
        ids = {str(table) for table in tables}
        return replace(self, reason=self.reason or reason, lacking=sorted(ids | set(self.lacking)))

    def gap_until(self) -> int:
        """Return a time (microseconds). All missing changes of this segment were written before it."""
        only_set_aside = self.set_aside and not self.broken and self.decoded == self.published
        return self.set_aside_at if only_set_aside else OPEN


@dataclass
class Totals:
    """The counts of completed segments."""

    segments: int = 0
    segments_set_aside: int = 0
    segments_vanished: int = 0
    mutations: int = 0
    mutations_set_aside: int = 0
    changes: int = 0
    changes_set_aside: int = 0


class AgentProgress:
    """The progress of one node's agent, and the time (microseconds) up to which all writes of the node are published.
    The tables in `covered`, by id, have a later time, because their snapshots have the missing changes. Only one agent
    at a time may use it. Raises a WritetimeError if another one uses it, or its file is damaged or missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock, stored = lock_and_read(folder, _read)
        self.node: str | None = stored.get("node")
        self.published_until: int = stored.get("published_until", 0)
        self.covered: dict[str, int] = stored.get("covered", {})
        self.totals = Totals(**stored.get("totals", {}))
        self.segments = {int(key): SegmentProgress(**value) for key, value in stored.get("segments", {}).items()}

    def of_node(self, node: str) -> None:
        """Bind the folder to a node. Raise OtherNode if it belongs to another one."""
        if self.node not in (None, node):
            raise OtherNode(
                f"the state folder {self.folder} belongs to the node with the host id {self.node}, and the node has "
                f"the host id {node}. If the node was replaced or has a new disk, run `writetime retire {self.node}`, "
                "move the state folder away, start the agent, and bring a snapshot of each node that is taken after "
                "that into the lake with `writetime backfill`, because changes that the earlier agent did not publish "
                "are on other replicas only. If this is another node, set capture.node, or another capture.state_dir"
            )
        if self.node is None:
            self.node = node
            self.save()

    def save(self) -> None:
        """Save the present progress."""
        segments = {str(key): asdict(value) for key, value in sorted(self.segments.items())}
        told = {"node": self.node, "published_until": self.published_until, "covered": self.covered}
        write_json(self.folder / _FILE, told | {"totals": asdict(self.totals), "segments": segments})

    def forget(self, segment_id: int) -> None:
        """Move the counts of a segment that no longer exists to the totals."""
        gone = self.segments.pop(segment_id)
        self.totals.segments += 1
        self.totals.segments_set_aside += gone.reason is not None
        self.totals.segments_vanished += not gone.finished
        self.totals.mutations += gone.mutations
        self.totals.mutations_set_aside += sum(gone.set_aside.values())
        self.totals.changes += gone.published
        self.totals.changes_set_aside += gone.decoded - gone.published

    def close(self) -> None:
        """Release the folder for another agent."""
        os.close(self._lock)


def _read(folder: Path) -> dict[str, Any]:
    stored = read_json(folder / _FILE)
    if stored is None:
        for name in _LATER_FILES:
            # The agent would not know which segments are gone.
            if (folder / name).exists():
                raise damaged(folder / _FILE, f"it is missing, and {name} is there")
    return stored or {}
