"""What a run does about a failure, by its kind. Used by all assets that talk to servers."""

from collections.abc import Iterator
from contextlib import contextmanager

from dagster import Failure, RetryRequested

from writetime.errors import Transient, WritetimeError

# Four minutes in all: a server's restart passes in less.
_RETRIES = 3
_WAIT_SECONDS = 80


@contextmanager
def by_kind() -> Iterator[None]:
    """Try again what may pass by itself; end at once, in one sentence, what a person has to mend.

    As a decorator, or around the body of a generator. What is no `WritetimeError` stays a traceback: it is a bug.
    """
    try:
        yield
    except Transient as e:
        raise RetryRequested(_RETRIES, _WAIT_SECONDS) from e
    except WritetimeError as e:
        raise Failure(str(e), allow_retries=False) from e
