"""How far each segment was published, and what became of its mutations: kept in one file, `progress.json`.

It is written after the broker has acknowledged what it says, positions and counts in one step; so after a crash an
agent goes on where it had been, repeats at most what was not saved, and its counts stay those of each mutation once.
"""

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from writetime.capture.durable import lock_folder, read_json, write_json
from writetime.core.errors import WritetimeError

_FILE = "progress.json"

# Of a gap that may get longer.
OPEN = 2**63 - 1


@dataclass(frozen=True)
class SegmentProgress:
    """Of one segment: the offset up to which it is published, and the marker to read on from.

    `mutations` were read, of which those in `set_aside` (by the table at fault, the last one at `set_aside_at`,
    microseconds) not to their ends; `decoded` changes came out of them, and `published` are acknowledged. `reason` says
    why the segment is to be set aside; a `broken` one cannot be read further. It is `finished` when nothing more is to
    be read of it, `kept` if it stays. `lacking` are the ids of the tables of which changes are missing; None if that
    may be any.
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
        """Return this progress when changes of some tables are missing for a reason; of any, with None."""
        if tables is None or self.lacking is None:
            return replace(self, reason=self.reason or reason, lacking=None)
        ids = {str(table) for table in tables}
        return replace(self, reason=self.reason or reason, lacking=sorted(ids | set(self.lacking)))

    def gap_until(self) -> int:
        """Return an instant (microseconds) before which all changes were written that are missing of this segment."""
        only_set_aside = self.set_aside and not self.broken and self.decoded == self.published
        return self.set_aside_at if only_set_aside else OPEN


@dataclass
class Totals:
    """What became of the segments that are done with."""

    segments: int = 0
    segments_set_aside: int = 0
    segments_vanished: int = 0
    mutations: int = 0
    mutations_set_aside: int = 0
    changes: int = 0
    changes_set_aside: int = 0


class Progress:
    """The progress of one node's agent, and until when (microseconds) all that the node wrote is published; of the
    tables in `covered`, by their ids, that is later, as their snapshots have what is missing. Only one agent at a time
    may have it.

    Raises:
        WritetimeError: another agent has it.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = lock_folder(folder)
        self.folder = folder
        stored: dict[str, Any] = read_json(folder / _FILE) or {}
        self.node: str | None = stored.get("node")
        self.published_until: int = stored.get("published_until", 0)
        self.covered: dict[str, int] = stored.get("covered", {})
        self.totals = Totals(**stored.get("totals", {}))
        self.segments = {int(key): SegmentProgress(**value) for key, value in stored.get("segments", {}).items()}

    def of_node(self, node: str) -> None:
        """Bind the folder to a node.

        Raises:
            WritetimeError: it is another one's.
        """
        if self.node not in (None, node):
            raise WritetimeError(f"the state folder {self.folder} is that of node {self.node}, not of {node}")
        self.node = node

    def save(self) -> None:
        """Keep what is known now."""
        segments = {str(key): asdict(value) for key, value in sorted(self.segments.items())}
        told = {"node": self.node, "published_until": self.published_until, "covered": self.covered}
        write_json(self.folder / _FILE, told | {"totals": asdict(self.totals), "segments": segments})

    def forget(self, segment_id: int) -> None:
        """Move the counts of a segment that is gone to the totals."""
        gone = self.segments.pop(segment_id)
        self.totals.segments += 1
        self.totals.segments_set_aside += gone.reason is not None
        self.totals.segments_vanished += not gone.finished
        self.totals.mutations += gone.mutations
        self.totals.mutations_set_aside += sum(gone.set_aside.values())
        self.totals.changes += gone.published
        self.totals.changes_set_aside += gone.decoded - gone.published

    def close(self) -> None:
        """Let another agent have the folder."""
        os.close(self._lock)
