"""Waiting for other threads and programs."""

from collections.abc import Callable
from typing import Any

from writetime.core.waiting import wait_until


def wait_for(reached: Callable[[], Any], seconds: float = 60) -> None:
    assert wait_until(reached, seconds, 0.05)
