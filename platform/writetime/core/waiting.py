"""Waiting for a condition."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float, pause: float = 0.1) -> bool:
    """Wait until a condition is true, and return whether it became true in time. It is checked at least once, and then
    after each pause, in seconds. A condition that takes long is checked less often, so that the check does not slow
    down the work that it waits for; but once more at the end of the time.
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
