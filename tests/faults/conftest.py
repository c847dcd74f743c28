"""Seeded randomness and the stage, for every fault test."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.stage import Stage
from writetime.core.config import Settings


@pytest.fixture
def rng() -> random.Random:
    """A seeded generator; `FAULT_SEED` repeats the run whose seed a failure has printed."""
    seed = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(2**32)))
    print(f"FAULT_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def stage(settings: Settings, rng: random.Random, tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Opens stages; keyword arguments are settings of `ingest`."""
    with ExitStack() as resources:

        def make(**ingest: Any) -> Stage:
            return resources.enter_context(Stage(settings, rng, tmp_path, **ingest))

        yield make
