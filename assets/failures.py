"""What a run does about a failure, by its kind. Used by all assets that talk to servers."""

from collections.abc import Iterator
from contextlib import contextmanager

from dagster import DagsterError, Failure, RetryRequested

from writetime.errors import WritetimeError
from writetime.outages import is_outage

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
