"""Finds the segments that the node has left in `cdc_raw`, and will neither write nor mark as complete any more.

A segment in `cdc_raw` is a hard link to the file in the node's `commitlog_directory`. The node deletes its own link
when it has closed the segment and flushed its data, or has replayed it after a crash. If the segment has captured
writes, it marks `_cdc.idx` as COMPLETED first. It leaves other segments as they are (Cassandra 4.0 to 5.0):

- At each clean stop, the node deletes the segment that it has prepared, but not the link in `cdc_raw`
  (`AbstractCommitLogSegmentManager.discardAvailableSegment`). The segment is empty.
- Before 5.0, a restarted node deletes each replayed segment without captured writes, but not the link in `cdc_raw`
  (`AbstractCommitLogSegmentManager.handleReplayedSegment`).
- After a crash, an operator removes segments that the node cannot replay, or the replay skips a segment. The link may
  have captured writes, and a `_cdc.idx` without COMPLETED, or none.

So a segment whose only link is that in `cdc_raw` has all of its data.
"""

import os
import time
from collections.abc import Iterable

from writetime.storage.segment import Segment


class LeftSegments:
    """Finds left segments. The file of one must not have changed for `seconds`: the node itself deletes the link of a
    segment without captured writes just after its own link, and an operator may still be copying a segment into the
    folder.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # The size and modification time (ns) of each left file, and when they were first seen, by the monotonic clock.
        self._seen: dict[int, tuple[tuple[int, int], float]] = {}
        # The names of the segments that have no complete index, and were left too recently to be read.
        self.recent: list[str] = []

    def begin_round(self, segments: Iterable[Segment]) -> None:
        """Look at the files of a new round. Call this before their indexes are read, which the node writes first."""
        before, self._seen, self.recent = self._seen, {}, []
        for segment in segments:
            if (file := _left_file(segment)) is not None:
                known = before.get(segment.id)
                since = known[1] if known is not None and known[0] == file else time.monotonic()
                self._seen[segment.id] = file, since

    def may_be_read(self, segment: Segment) -> bool:
        """Return whether a segment without a complete index may be read to its end. If it was left too recently, note
        it in `recent`.
        """
        if segment.id not in self._seen:
            return False
        if time.monotonic() - self._seen[segment.id][1] >= self._seconds:
            return True
        self.recent.append(segment.name)
        return False


def _left_file(segment: Segment) -> tuple[int, int] | None:
    """Return the size and the modification time of a segment's file if it has no other link."""
    try:
        found = os.lstat(segment.path)
    except FileNotFoundError:
        return None
    return (found.st_size, found.st_mtime_ns) if found.st_nlink == 1 else None
