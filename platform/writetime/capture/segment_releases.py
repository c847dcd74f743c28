"""Releases the segments that an agent has read to their end: deletes, keeps or archives them, or sets them aside."""

import logging
import time
from dataclasses import replace

from writetime.capture.decoding import unbalanced
from writetime.capture.metrics import AgentMetrics, fault_kind
from writetime.capture.progress import OPEN, AgentProgress, SegmentProgress
from writetime.capture.segments import SegmentFolder, closed_before
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, reason_of
from writetime.storage.segment import Segment

log = logging.getLogger(__name__)

# How long completed segments are released in one round, and the longest pause after one that cannot be.
_RELEASE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0


class _Pause:
    """A pause after a fault. It grows with each fault, until a success. Times are in seconds."""

    def __init__(self, shortest: float) -> None:
        self._shortest = self._next = shortest
        self._until = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def begin(self) -> None:
        self._until = time.monotonic() + self._next
        self._next = min(2 * self._next, _LONGEST_PAUSE_SECONDS)

    def reset(self) -> None:
        self._next = self._shortest


class SegmentReleases:
    """The releases of an agent's segments, and the pauses after those that fail (`shortest_pause`: in seconds)."""

    def __init__(
        self, progress: AgentProgress, folder: SegmentFolder, metrics: AgentMetrics, shortest_pause: float
    ) -> None:
        self._progress, self.folder, self._metrics = progress, folder, metrics
        # Why segments stay where they are, and when each was last tried.
        self._stuck: dict[int, tuple[str, float]] = {}
        # Before any segment is released again, and before one that failed earlier is.
        self._pause, self._stuck_pause = _Pause(shortest_pause), _Pause(shortest_pause)

    def release_finished(self, segments: list[Segment]) -> None:
        """Release the segments that are finished, for at most about `_RELEASE_SECONDS`, because live changes wait
        meanwhile. At a fault, stop, and try again after a pause, which grows with each fault. So an archive that does
        not answer delays live changes once per pause. Segments that failed before have a pause of their own, and others
        are released meanwhile. Only the release of one of them resets that pause.
        """
        began = time.monotonic()
        waiting = [s for s in segments if (p := self._progress.segments[s.id]).finished and not p.kept]
        # Segments with a fault come last, the longest untried first, so that none delays another.
        for segment in sorted(waiting, key=lambda s: self._stuck.get(s.id, ("", 0.0))[1]):
            pause = self._stuck_pause if segment.id in self._stuck else self._pause
            if not pause.is_over:
                return
            if not self._try_to_release(segment):
                if self._stuck_pause.is_over:
                    # Its first retry waits, too.
                    self._stuck_pause.begin()
                if pause is self._pause:
                    pause.begin()
                return
            pause.reset()
            if time.monotonic() - began >= _RELEASE_SECONDS:
                return

    def _try_to_release(self, segment: Segment) -> bool:
        try:
            self._release_or_set_aside(segment, self._progress.segments[segment.id])
        except Exception as e:
            self._metrics.error(fault_kind(e))
            before, reason = self._stuck.get(segment.id, ("", 0.0))[0], reason_of(e)
            if reason != before:
                unknown = not isinstance(e, (WritetimeError, OSError))
                log.error("%s stays in place: %s; retrying", segment.name, reason, exc_info=unknown)
            self._stuck[segment.id] = reason, time.monotonic()
            return False
        self._stuck.pop(segment.id, None)
        return True

    def _release_or_set_aside(self, segment: Segment, progress: SegmentProgress) -> None:
        """Release a segment if its counts agree; otherwise set it aside."""
        fault = unbalanced(segment, progress)
        if fault is not None:
            progress = progress.without(fault, None)
        reason = progress.reason
        self._progress.segments[segment.id] = progress
        self._progress.save()
        if reason is not None:
            written_before = progress.gap_until() if fault is None else OPEN
            target = self.folder.set_aside(segment, progress, min(written_before, closed_before(segment)))
            log.error("%s was set aside as %s: %s", segment.name, target, reason)
        elif not self.folder.release(segment):
            self._progress.segments[segment.id] = replace(progress, kept=True)
            return
        log.info(
            "%s: %s read, %s published",
            *(segment.name, pluralize(progress.mutations, "mutation"), pluralize(progress.published, "change")),
        )
        self._progress.forget(segment.id)
        self._progress.save()
