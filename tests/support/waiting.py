"""Waiting for what other threads and programs do."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(reached: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)
