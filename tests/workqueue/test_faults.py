"""Each fault once, on the tests' own database. `FAULT_SEED` repeats the runs with the seed that a failure printed.

Oracle: the database's tables by CQL, and the ledger of acknowledged items.
"""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.workqueue.faults import run
from writetime.core.config import Settings

pytestmark = pytest.mark.long

# One of each kind; `python -m tests.workqueue.faults` has all of them, many times. They wait for leases most of the
# time, each with a queue of its own: three at once.
QUICK = [
    "wrong clocks",
    "killed after effect",
    "zombie",
    "bucket ends",
    "lost answers",
    "controlled",
    "recurring",
    "steps",
    "sleeps",
    "database away",
]


def test_faults(queue_keyspace: Settings, tmp_path: Path) -> None:
    seed = _seed()

    def fail(fault: str) -> str:
        folder = tmp_path / fault
        folder.mkdir()
        return f"{fault}: {run(queue_keyspace, fault, seed, folder)}"

    with ThreadPoolExecutor(3) as pool:
        print(*pool.map(fail, QUICK), sep="\n")


@pytest.mark.long_only("`database away` is in each run, and tests/faults/test_restarts.py kills a database")
@pytest.mark.cassandra_only("kills the embedded database")
def test_the_database_is_killed(queue_keyspace: Settings, tmp_path: Path) -> None:
    print(run(queue_keyspace, "database killed", _seed(), tmp_path))


def _seed() -> int:
    seed = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(2**32)))
    print(f"FAULT_SEED={seed}")
    return seed
