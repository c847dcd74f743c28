"""Unexpected faults by place. Each is logged, counted, and kept for `writetime status`.

A place is a queue, a shard, a bucket or an item. It is retried three times. Then there is a longer pause.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, reason_of
from writetime.workqueue.metrics import QueueMetrics
from writetime.workqueue.queue_tables import QueueTables

log = logging.getLogger(__name__)

TRIES = 3
# The pause of a place before the first retry, twice that before the second, and after the last one.
RETRY_SECONDS = 1.0
REST_SECONDS = 60.0
_MAX_REASON_CHARACTERS = 1000


class Faults:
    """The faults of one worker."""

    def __init__(
        self,
        tables: QueueTables,
        worker: str,
        monotonic: Callable[[], float],
        metrics: Mapping[str, QueueMetrics],
    ) -> None:
        self.rest_seconds = REST_SECONDS
        self._tables = tables
        self._worker = worker
        self._monotonic = monotonic
        self._metrics = metrics
        # How often in succession each place has failed, and when it did last.
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}
        self._reports: set[asyncio.Task[None]] = set()

    def note(self, queue: str, place: str, error: BaseException) -> float:
        """Record a fault; return the pause of its place in seconds. After several attempts, it is `rest_seconds`."""
        now = self._monotonic()
        # A place that worked for two rests has recovered.
        self._seen = {name: seen for name, seen in self._seen.items() if now - seen[1] < 2 * self.rest_seconds}
        times = self._seen.get((queue, place), (0, now))[0] + 1
        self._seen[queue, place] = times, now
        pause = RETRY_SECONDS * times if times < TRIES else self.rest_seconds
        reason = "; ".join([reason_of(error), *getattr(error, "__notes__", ())])
        if metrics := self._metrics.get(queue):
            metrics.faults.labels(queue, place.rpartition(", ")[2].split()[0]).inc()
        trace = None if isinstance(error, WritetimeError) else error
        log.error("queue %s, %s: failed %s: %s", queue, place, pluralize(times, "time"), reason, exc_info=trace)
        report = asyncio.create_task(report_fault(self._tables, queue, self._worker, place, times=times, reason=reason))
        self._reports.add(report)
        report.add_done_callback(self._reports.discard)
        return pause

    async def end(self) -> None:
        """Stop reports in progress."""
        reports = list(self._reports)
        for report in reports:
            report.cancel()
        await asyncio.gather(*reports, return_exceptions=True)


async def report_fault(tables: QueueTables, queue: str, worker: str, place: str, *, times: int, reason: str) -> None:
    """Keep a fault for `writetime status`. It is in the log, so one that cannot be kept is only logged."""
    try:
        await tables.report_fault(queue, worker, place, times, reason[:_MAX_REASON_CHARACTERS])
    except Exception as e:
        log.warning("queue %s, %s: the fault is not reported to the database: %s", queue, place, reason_of(e))
