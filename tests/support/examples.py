"""The number of inputs that a test tries: a quarter in `make test`, all in `make test-long`.

Each run tries other inputs, so that many short runs find as much as one long run.
"""

import os
import random
from typing import Any

from hypothesis import settings

# tests/conftest.py sets it before test modules are imported.
_LONG = "LONG_TESTS"
_FEWEST = 3


def is_long_run() -> bool:
    """Return whether this is `make test-long`; the fixture `is_long` is the same in tests."""
    return _LONG in os.environ


def examples(number: int, **options: Any) -> settings:
    """Return settings of hypothesis: `number` is how many examples a long run tries."""
    return settings(max_examples=rounds(number), **options)


def rounds(number: int) -> int:
    """Return how many inputs this run tries, if a long run tries so many."""
    return number if is_long_run() else max(number // 4, _FEWEST)


def some(numbers: range, seed: int) -> list[int]:
    """Return all numbers in a long run, otherwise a quarter of them, which the seed chooses."""
    return sorted(random.Random(seed).sample(numbers, min(rounds(len(numbers)), len(numbers))))
