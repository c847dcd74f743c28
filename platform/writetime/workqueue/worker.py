"""The worker. It keeps its share of the shards of its queues, and runs handlers for their items.

A handler takes an `Item`. Its return value, as JSON, is stored with the item's completion in one fenced write. So it is
stored exactly once, even if workers fail. The other effects of a handler happen at least once, and the item's id is
their idempotency key. A handler may be an ordinary function, which runs in one of the worker's threads, or a coroutine
function. All coroutine functions share an event loop, which is not the worker's. Anything that is raised is a failed
attempt, also `sys.exit`. `GiveUp` makes the item a dead letter at once.
"""

import asyncio
import os
import platform
import secrets
import threading
from collections import Counter
from collections.abc import Mapping
from functools import partial

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.workqueue.hints import KafkaHint
from writetime.workqueue.metrics import WorkerMetrics
from writetime.workqueue.queue_tables import QueueTables
from writetime.workqueue.worker_loop import Handler, WorkerLoop


class Worker:
    """Processes the items of queues, each with a handler."""

    def __init__(
        self,
        settings: Settings,
        handlers: Mapping[str, Handler],
        hint: KafkaHint | None = None,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        """Set a worker up; `run` starts it. `hint` wakes it up before its next poll."""
        self.name = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._settings = settings
        self._handlers = dict(handlers)
        self._hint = hint
        self._metrics = metrics

    def run(self, stop: threading.Event | None = None, *, until_idle: bool = False) -> Counter[str]:
        """Process items until `stop` is set, or until there is nothing to do; then end gracefully. Return the numbers
        of attempts that were completed, failed (`retry`), made an item `dead`, were `cancelled`, or were refused by the
        fence (`fenced`).

        Let signals set `stop`. One whose handler raises may interrupt the handler of an item, and end only that.

        Raises:
            DatabaseUnreachable: no contact point answers at the start.
            WritetimeError: the tables are missing, the database refuses all queues, or too many handlers have not ended
                within their limits. Or, with `until_idle`, queues or shards were given up with unfinished items.
        """
        with connect(self._settings) as session:
            tables = QueueTables(session, self._settings)
            return asyncio.run(self._run(tables, stop or threading.Event(), until_idle=until_idle))

    async def _run(self, tables: QueueTables, stop: threading.Event, *, until_idle: bool) -> Counter[str]:
        ended = asyncio.Event()
        running = WorkerLoop(tables, self._settings.workqueue, self._handlers, self.name, metrics=self._metrics)
        watcher = asyncio.create_task(_watch(stop, ended))
        if self._hint is not None:
            loop = asyncio.get_running_loop()
            self._hint.start(partial(loop.call_soon_threadsafe, running.hinted))
        try:
            return await running.serve(ended, until_idle=until_idle)
        finally:
            watcher.cancel()
            if self._hint is not None:
                self._hint.stop()


async def _watch(stop: threading.Event, ended: asyncio.Event) -> None:
    while not stop.is_set():
        await asyncio.sleep(0.05)
    ended.set()
