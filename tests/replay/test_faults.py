"""One run of each fault; `tests.replay.faults` makes many.

Oracle: the ledger of what the test published, and the database's tables by CQL.
"""

import random
from pathlib import Path

import pytest

from tests.replay.faults import FAULTS, SEQUENCES, run_fault
from tests.support.generate import SEED
from writetime.core.config import Settings

pytestmark = pytest.mark.long

_LONG = pytest.mark.long_only("servers restart again and again")


@pytest.mark.parametrize("fault", [pytest.param(f, marks=_LONG) if f == "restarted" else f for f in FAULTS])
def test_faults(replay_settings: Settings, tmp_path: Path, queue: str, fault: str, is_long: bool) -> None:
    sequences = SEQUENCES if is_long else SEQUENCES // 4
    run_fault(replay_settings, tmp_path, queue, fault, random.Random(SEED), sequences)
