"""How many examples a test of properties tries: a quarter of them by `make test`, all by `make test-long`.

Each run tries others, so that many short runs find what one long run does.
"""

import os
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
    tried = number if is_long_run() else max(number // 4, _FEWEST)
    return settings(max_examples=tried, **options)
