"""A quick queue: short buckets, pauses of a few milliseconds; leases that outlast a busy machine."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from writetime.clients import database
from writetime.core.config import Queue, Settings, WorkQueue

QUICK = {
    "lease_seconds": 15.0,
    "threads": 4,
    "idle_poll_seconds": 0.1,
    "rescan_seconds": 1.0,
    "settle_seconds": 1.0,
    "drain_seconds": 10.0,
    "enqueue_timeout_seconds": 30.0,
    "close_after_seconds": 60.0,
}


def with_queue(settings: Settings, queue: str, own: dict[str, Any] | None = None, **workqueue: Any) -> Settings:
    """Settings with a quick work queue; `own` are settings of the queue itself."""
    queues = {queue: Queue(**{"shards": 4, "backoff_base_seconds": 0.05, **(own or {})})}
    return settings.model_copy(update={"workqueue": WorkQueue(**{**QUICK, "queues": queues, **workqueue})})


@pytest.fixture(scope="session")
def queue_keyspace(cassandra: Settings, make_keyspace: Callable[[Settings], None]) -> Settings:
    """Settings with one keyspace for all tests of queues: a queue's name keeps them apart."""
    own = cassandra.cassandra.model_copy(update={"keyspace": f"queues_{uuid.uuid4().hex[:8]}"})
    settings = cassandra.model_copy(update={"cassandra": own})
    make_keyspace(settings)
    database.apply_schema(settings)
    return settings


@pytest.fixture
def jobs() -> str:
    """The name of a queue that no other test uses."""
    return f"jobs-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue_settings(queue_keyspace: Settings, jobs: str) -> Settings:
    return with_queue(queue_keyspace, jobs)
