"""Waiting for other threads and programs."""

from collections.abc import Callable
from typing import Any

from writetime.core.waiting import wait_until

PATIENCE_SECONDS = 600.0
"""How long tests wait, because a busy machine may take many times as long as a quiet one."""


def wait_for(reached: Callable[[], Any], pause: float = 0.05) -> None:
    """Wait until a condition holds, with a pause between two looks (seconds). A look may cost more CPU than the work
    that is waited for.
    """
    assert wait_until(reached, PATIENCE_SECONDS, pause), f"waited {PATIENCE_SECONDS:.0f} s in vain"
