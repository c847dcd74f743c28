"""Retries of failures by their kind. All assets that use servers use this module."""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import dagster as dg

from writetime.clients.database import is_without_answer
from writetime.core.errors import Transient, WritetimeError, hide_passwords, reason_of
from writetime.core.outages import is_outage
from writetime_dagster.resources.private_dagster import ErrorWithoutTrace

log = logging.getLogger(__name__)


class ToCorrect(ErrorWithoutTrace, dg.Failure):
    """A failure that an operator must correct. It shows one sentence without a stack trace, which would hide it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, allow_retries=False)


_T = TypeVar("_T")

RETRIES = 3
"""The number of retries of an asset. They take four minutes in all, and a server restarts in less."""

_WAIT_SECONDS = 80
# An unknown failure may pass at once, or never.
_SOON_SECONDS = 2


@contextmanager
def retry_if_transient(soon_seconds: int = _SOON_SECONDS) -> Iterator[None]:
    """Retry a failure that may pass by itself. Fail at once, with one sentence, if an operator must correct it.

    Any other exception is a bug: it is retried three times, then Dagster shows its traceback, and the steps of other
    tables continue. As a decorator, use `retried`, which also serves a generator.

    Args:
        soon_seconds: the time before an unknown failure is retried.
    """
    try:
        yield
    except (dg.DagsterError, dg.Failure, dg.RetryRequested):
        raise
    except Exception as e:
        if is_outage(e) or is_without_answer(e):
            hide_passwords(e)
            raise dg.RetryRequested(RETRIES, _WAIT_SECONDS) from e
        # Another program may have replaced a file of the lake, so its absence may pass.
        if isinstance(e, WritetimeError) and not isinstance(e, FileNotFoundError):
            raise ToCorrect(reason_of(e)) from None
        hide_passwords(e)
        raise dg.RetryRequested(RETRIES, soon_seconds) from e


def retried(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function or generator function of a step with `retry_if_transient` around its work."""
    if not inspect.isgeneratorfunction(work):
        return retry_if_transient()(work)

    @wraps(work)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with retry_if_transient():
            yield from work(*args, **kwargs)

    return generate


def for_each_queue(names: Iterable[str], act: Callable[[str], _T]) -> tuple[dict[str, _T], dict[str, str]]:
    """Call `act` with each of several queues. Return the results and the failures. If the server cannot be reached,
    raise.
    """
    answers: dict[str, _T] = {}
    faults: dict[str, str] = {}
    for name in names:
        try:
            answers[name] = act(name)
        except Transient:
            raise
        except Exception as e:
            log.error("queue %s: %s", name, reason_of(e), exc_info=None if isinstance(e, WritetimeError) else e)
            faults[name] = reason_of(e)
    return answers, faults
