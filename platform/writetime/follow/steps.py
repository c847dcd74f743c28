"""When a step of a table is due, and what its last attempt met. A step that fails stops no other table."""

import logging
import time
from collections.abc import Callable

from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.core.outages import is_outage
from writetime.lake.delta import Conflict

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0


class Step:
    """One step of a table. It has something to do while it is `behind`, and is due again `every` seconds after the
    begin of its last attempt.
    """

    def __init__(self, name: str, table: str, every: float) -> None:
        self.name = name
        self.behind = True
        # Why the last attempt failed, if it did.
        self.fault: str | None = None
        # The duration of the last attempt that succeeded.
        self.seconds = 0.0
        self._table = table
        self._every = every
        self._next = 0.0
        self._attempts = 0

    @property
    def is_due(self) -> bool:
        """Return whether it has something to do now."""
        return self.behind and time.monotonic() >= self._next

    def attempt(self, work: Callable[[], int]) -> int | None:
        """Do the work, and return its result; None if it fails. Then it stays behind, and is tried again later."""
        begin = time.monotonic()
        self._next = begin + self._every
        try:
            done = work()
        except Conflict:
            # Another process was first. The next attempt goes on from there.
            return None
        except Exception as e:
            self._attempts += 1
            pause = min(_PAUSE_SECONDS * 2 ** min(self._attempts - 1, 10), _LONGEST_PAUSE_SECONDS)
            self._next = time.monotonic() + max(pause, self._every)
            if self.fault != (fault := reason_of(e)):
                unknown = not isinstance(e, WritetimeError) and not is_outage(e)
                kind = "is tried again" if isinstance(e, Transient) else "has failed, and is tried again"
                log.error("%s: the step `%s` %s: %s", self._table, self.name, kind, fault, exc_info=unknown)
            self.fault = fault
            return None
        if self.fault is not None:
            log.info("%s: the step `%s` works again", self._table, self.name)
        self.behind, self.fault, self._attempts = False, None, 0
        self.seconds = time.monotonic() - begin
        return done
