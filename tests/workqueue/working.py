"""Workers in threads, and the states of items."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from tests.support.waiting import wait_for
from writetime.clients import database
from writetime.core.config import Settings
from writetime.workqueue import Worker


def states(settings: Settings, *jobs: str) -> dict[UUID, Any]:
    """The states of all items of queues, by CQL."""
    columns = "queue, item_id, status, attempts, textAsBlob(result) AS result, error"
    with database.connect(settings) as session:
        found = session.execute(f"SELECT {columns} FROM {settings.cassandra.keyspace}.queue_state")
        # A partition with static columns only has a row without a status. With a function in the query, ScyllaDB 2026.1
        # gives it the id of the item before it (scylladb/scylladb#21267).
        own = [row for row in found if row.status is not None and row.queue in jobs]
        # Results of other tests may not be text.
        return {row.item_id: row._replace(result=row.result and row.result.decode()) for row in own}


@contextmanager
def working(settings: Settings, handlers: dict[str, Any], count: int = 1) -> Iterator[list[Worker]]:
    """Run workers in threads while in the block, then end them gracefully."""
    stop = threading.Event()
    workers = [Worker(settings, handlers) for _ in range(count)]
    threads = [threading.Thread(target=worker.run, args=(stop,)) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield workers
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def until(condition: Callable[[], bool]) -> None:
    wait_for(condition, 0.02)


def until_stored(condition: Callable[[], bool]) -> None:
    """Wait for what the database has. Each look opens a connection, which costs more CPU than most of the work that is
    waited for, so it is rare.
    """
    wait_for(condition, 0.4)
