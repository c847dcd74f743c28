"""A database that stops answering while a step reads it: Dagster runs the step again."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cassandra import InvalidRequest, OperationTimedOut, ReadTimeout, Unavailable, protocol
from cassandra.cluster import NoHostAvailable, ResponseFuture
from cassandra.connection import ConnectionException
from dagster import RetryRequested

from writetime.clients.prepared_statements import driver_faults_named
from writetime.workqueue import statements
from writetime_dagster.assets.failures import ToCorrect, retry_if_transient

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
    with driver_faults_named("the replay queues"):
        raise error


def elsewhere(error: Exception) -> None:
    raise error


_QUEUES = [in_a_work_queue, in_a_replay_queue]
# The driver has two kinds of refusals.
_REFUSALS = [InvalidRequest("no table"), protocol.SyntaxException(0x2000, "no query", None)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", _OUTAGES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("read", [*_QUEUES, elsewhere])
def test_an_outage_is_waited_for(read: Callable[[Exception], None], error: Exception) -> None:
    """Not only for the two seconds after which an unknown error is tried again."""
    with pytest.raises(RetryRequested) as raised, retry_if_transient():
        read(error)
    assert (raised.value.seconds_to_wait or 0) > 60


@pytest.mark.parametrize("error", _REFUSALS, ids=lambda error: type(error).__name__)
def test_a_refusal_is_not_waited_for(error: Exception) -> None:
    for read in _QUEUES:
        with pytest.raises(ToCorrect, match="the database refuses a statement"), retry_if_transient():
            read(error)
    # This one is a bug.
    with pytest.raises(RetryRequested) as raised, retry_if_transient():
        elsewhere(error)
    assert (raised.value.seconds_to_wait or 0) < 60
