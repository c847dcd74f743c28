"""Unexpected faults by place. Each is logged, counted, and kept for `writetime status`.

A place is a queue, a shard, a bucket or an item. It is retried three times. Then there is a longer pause.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, reason_of
from writetime.workqueue.metrics import QueueMetrics
from writetime.workqueue.queue_tables import QueueTables

log = logging.getLogger(__name__)

TRIES = 3
_MAX_REASON_CHARACTERS = 1000


@dataclass(frozen=True)
class Pauses:
    """The pauses of a place after a fault."""

    # Before the first retry; twice that before the second.
    retry_seconds: float = 1.0
    # After the last one.
    rest_seconds: float = 60.0


PAUSES = Pauses()


class _Seen(NamedTuple):
    times: int
    at: float


class Faults:
    """The faults of one worker."""

    def __init__(
        self,
        tables: QueueTables,
        worker: str,
        monotonic: Callable[[], float],
        metrics: Mapping[str, QueueMetrics],
        pauses: Pauses,
    ) -> None:
        self.rest_seconds = pauses.rest_seconds
        self._retry_seconds = pauses.retry_seconds
        self._tables = tables
        self._worker = worker
        self._monotonic = monotonic
        self._metrics = metrics
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._reports: set[asyncio.Task[None]] = set()

    def note(self, queue: str, place: str, error: BaseException) -> float:
        """Record a fault; return the pause of its place in seconds. After several attempts, it is `rest_seconds`."""
        now = self._monotonic()
        # A place that worked for two rests has recovered.
        self._seen = {name: seen for name, seen in self._seen.items() if now - seen.at < 2 * self.rest_seconds}
        before = self._seen.get((queue, place))
        times = before.times + 1 if before else 1
        self._seen[queue, place] = _Seen(times, now)
        pause = self._retry_seconds * times if times < TRIES else self.rest_seconds
        reason = "; ".join([reason_of(error), *getattr(error, "__notes__", ())])
        if metrics := self._metrics.get(queue):
            metrics.faulted(place.rpartition(", ")[2].split()[0])
        trace = None if isinstance(error, WritetimeError) else error
        log.error("queue %s, %s: failed %s: %s", queue, place, pluralize(times, "time"), reason, exc_info=trace)
        report = asyncio.create_task(self._report(queue, place, times, reason[:_MAX_REASON_CHARACTERS]))
        self._reports.add(report)
        report.add_done_callback(self._reports.discard)
        return pause

    async def end(self) -> None:
        """Stop reports in progress."""
        reports = list(self._reports)
        for report in reports:
            report.cancel()
        await asyncio.gather(*reports, return_exceptions=True)

    async def _report(self, queue: str, place: str, times: int, reason: str) -> None:
        try:
            await self._tables.report_fault(queue, self._worker, place, times, reason)
        except Exception as e:
            # The fault is in the log and in the metrics.
            log.warning("queue %s, %s: the fault is not reported to the database: %s", queue, place, reason_of(e))
