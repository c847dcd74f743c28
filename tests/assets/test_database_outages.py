"""A database that stops answering while a step reads it: Dagster runs the step again."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cassandra import InvalidRequest, OperationTimedOut, ReadTimeout, Unavailable
from cassandra.cluster import NoHostAvailable, ResponseFuture
from cassandra.connection import ConnectionException
from dagster import RetryRequested

from writetime.replay import batches
from writetime.workqueue import statements
from writetime_dagster.assets.failures import ToCorrect, by_kind

_OUTAGES = [
    OperationTimedOut(),
    ReadTimeout("no answer"),
    Unavailable("no replica"),
    NoHostAvailable("no node", {}),
    ConnectionException("lost"),
]


def in_a_work_queue(error: Exception) -> None:
    def add_callbacks(_: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
        failed(error)

    asyncio.run(statements.answer_of(cast("ResponseFuture", SimpleNamespace(add_callbacks=add_callbacks))))


def in_a_replay_queue(error: Exception) -> None:
    with batches.named("the replay queues"):
        raise error


_READERS = [in_a_work_queue, in_a_replay_queue]


@pytest.mark.parametrize("error", _OUTAGES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("read", _READERS)
def test_an_outage_is_waited_for(read: Callable[[Exception], None], error: Exception) -> None:
    """Not only for the two seconds after which an unknown error is tried again."""
    with pytest.raises(RetryRequested) as raised, by_kind():
        read(error)
    assert (raised.value.seconds_to_wait or 0) > 60


@pytest.mark.parametrize("read", _READERS)
def test_a_refusal_is_not_waited_for(read: Callable[[Exception], None]) -> None:
    with pytest.raises(ToCorrect, match="the database refuses a statement"), by_kind():
        read(InvalidRequest("no table"))
