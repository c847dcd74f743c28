"""Every fault once, on the tests' own database. `FAULT_SEED` repeats the run whose seed a failure has printed."""

import os
import random
from pathlib import Path

import pytest

from writetime.config import Settings

from .faults import run

# One of each kind; `python -m tests.workqueue.faults` has all of them, many times.
QUICK = ["killed after effect", "zombie", "wrong clocks", "lost answers", "bucket ends", "database killed"]


@pytest.mark.parametrize("fault", QUICK)
def test_fault(queue_keyspace: Settings, fault: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(2**32)))
    print(f"FAULT_SEED={seed}")
    print(run(queue_keyspace, fault, seed, tmp_path))
