"""Waiting for a condition."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float, pause: float = 0.1) -> bool:
    """Wait until a condition is true; return whether it became true in time. The condition is checked at least once,
    after each pause (in seconds), and at the end of the time. A slow condition is checked less often, so that the check
    does not slow down the work that it waits for.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return True
        now = time.monotonic()
        if now > deadline:
            return False
        time.sleep(max(pause, min(2 * (now - began), deadline - now)))
