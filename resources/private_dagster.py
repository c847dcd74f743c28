"""The only module that uses private parts of Dagster. Each has a reason, and Dagster 1.13 has no public equivalent.

If another release lacks such a part, one sentence is logged, and the platform works without it.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import dagster as dg

log = logging.getLogger(__name__)

# A run that is terminated while it sleeps ends after it.
_SLEEP_SECONDS = 1.0


@cache
def _log_lack(part: str, consequence: str) -> None:
    log.warning("this release of Dagster lacks %s: %s", part, consequence)


@contextmanager
def _if_present(part: str, consequence: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, AttributeError):
        _log_lack(part, consequence)


try:
    from dagster._core.errors import DagsterUserCodeProcessError
    from dagster_shared.error import SerializableErrorInfo
except ImportError:
    _log_lack("DagsterUserCodeProcessError", "it shows failures that an operator must correct with stack traces")

    class ErrorWithoutTrace(dg.DagsterError):
        """The base of an error. Dagster shows it with a stack trace."""

else:

    class ErrorWithoutTrace(DagsterUserCodeProcessError):  # pyright: ignore[reportRedeclaration]
        """The base of an error that Dagster shows without a stack trace, as it shows the errors of other processes."""

        def __init__(self, reason: str, **arguments: Any) -> None:
            info = SerializableErrorInfo(f"{reason}\n", [], type(self).__name__)
            super().__init__(reason, user_code_process_error_infos=[info], **arguments)


# Dagster's public way to the context, a state-backed component, is only for projects of components.
_CONTEXT = "DefinitionsLoadContext", "each run reads the database and the settings file again"


def loaded_with(key: str) -> str | None:
    """Return the text that the code location passed on when it was loaded, if this is a process of one of its runs.
    Else return None.
    """
    with _if_present(*_CONTEXT):
        from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType

        context = DefinitionsLoadContext.get()
        if context.load_type is DefinitionsLoadType.RECONSTRUCTION:
            return context.reconstruction_metadata.get(key)
    return None


def pass_on(key: str, text: str) -> None:
    """Pass a text on from the code location that is being loaded to the processes of its runs."""
    with _if_present(*_CONTEXT):
        from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext

        DefinitionsLoadContext.get().add_to_pending_reconstruction_metadata(key, text)


@cache
def sleep_in_pools(before_look: Callable[[dg.DagsterInstance], object]) -> None:
    """Let runs of this process that wait for a pool sleep. Call a function just before they look at their pools again.

    Dagster's own function (`interval_to_next_pending_claim_check`, in 1.13) returns the smallest of the seconds to wait
    and 0, so a waiting run never sleeps, and takes most of a core.
    """
    lack = "InstanceConcurrencyContext", "a run that waits for a pool may take a core, and does not end dead runs"
    with _if_present(*lack):
        from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext

        own = InstanceConcurrencyContext.interval_to_next_pending_claim_check

        def until_next_look(self: Any) -> float:
            instance = None
            with _if_present(*lack):
                timeouts, instance = self._pending_timeouts, self._instance
            if instance is None:
                return own(self)
            seconds = max(0.0, min(timeouts.values(), default=0.0) - time.time())
            if seconds <= _SLEEP_SECONDS:
                before_look(instance)
            return min(seconds, _SLEEP_SECONDS)

        InstanceConcurrencyContext.interval_to_next_pending_claim_check = until_next_look
