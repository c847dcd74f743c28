"""What a run does about a failure, by its kind. Used by all assets that talk to servers."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dagster import DagsterError, Failure, RetryRequested

from writetime.clients.zookeeper import NoZooKeeper
from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.core.outages import is_outage
from writetime.replay import batches as replay
from writetime.workqueue import statements as workqueue

log = logging.getLogger(__name__)
_T = TypeVar("_T")

# Four minutes in all: a server's restart passes in less.
_RETRIES = 3
_WAIT_SECONDS = 80
# What nobody knows may pass at once, or never.
_SOON_SECONDS = 2


@contextmanager
def by_kind() -> Iterator[None]:
    """Try again what may pass by itself; end at once, in one sentence, what a person has to mend.

    As a decorator, or around the body of a generator. What is neither is a bug: it is tried again three times, then its
    traceback stays, and the steps of other tables go on.
    """
    try:
        yield
    except (DagsterError, Failure, RetryRequested):
        raise
    except Exception as e:
        if is_outage(e):
            raise RetryRequested(_RETRIES, _WAIT_SECONDS) from e
        if isinstance(e, WritetimeError):
            raise Failure(str(e), allow_retries=False) from e
        raise RetryRequested(_RETRIES, _SOON_SECONDS) from e


def apart(names: Iterable[str], act: Callable[[str], _T]) -> tuple[dict[str, _T], dict[str, str]]:
    """Do the same for several queues; return the answers, and why some failed. A server that is away fails all."""
    answers: dict[str, _T] = {}
    faults: dict[str, str] = {}
    for name in names:
        try:
            answers[name] = act(name)
        except (Transient, workqueue.Unknown, replay.Unknown, NoZooKeeper):
            raise
        except Exception as e:
            log.error("queue %s: %s", name, reason_of(e), exc_info=None if isinstance(e, WritetimeError) else e)
            faults[name] = reason_of(e)
    return answers, faults
