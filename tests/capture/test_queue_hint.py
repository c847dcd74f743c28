"""A worker wakes up when the agent publishes changes of its queue's items."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.captured import Captured
from tests.support.waiting import PATIENCE_SECONDS
from writetime.clients import database
from writetime.core.config import WorkQueue
from writetime.workqueue import Enqueuer, Worker
from writetime.workqueue.hints import KafkaHint

# By itself the worker looks once, when it starts.
NEVER: dict[str, Any] = {"poll_seconds": 600.0, "idle_poll_seconds": 600.0}


def test_a_worker_is_woken(captured: Captured) -> None:
    own = captured.settings.cassandra.model_copy(update={"keyspace": captured.keyspace})
    settings = captured.settings.model_copy(update={"cassandra": own, "workqueue": WorkQueue(**NEVER)})
    database.apply_schema(settings)
    captured.write("ALTER TABLE {ks}.queue_items WITH cdc = true")
    done: list[int] = []
    stop = threading.Event()
    worker = Worker(settings, {"jobs": lambda item: done.append(item.payload)}, KafkaHint(settings))
    with captured.agent(), Enqueuer(settings) as enqueuer, ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run, stop)
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            # The first ones make the topic, which the worker has to find.
            while len(done) < 3:
                assert time.monotonic() < deadline, done
                enqueuer.enqueue("jobs", len(done))
                time.sleep(1)
        finally:
            stop.set()
        running.result(PATIENCE_SECONDS)
