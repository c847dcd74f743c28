"""Repeats statements that the database did not answer."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from writetime.workqueue.statements import UnknownItemWrite

_T = TypeVar("_T")

_PAUSE_SECONDS = 0.05
_PAUSE_CAP_SECONDS = 2.0


async def retry(act: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a repeatable statement, with growing pauses, until the database answers; the caller may set a deadline."""
    pause = _PAUSE_SECONDS
    while True:
        try:
            return await act()
        except UnknownItemWrite:
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(_PAUSE_CAP_SECONDS, pause * 2)
