"""A few simulations of workers with many faults; `GENERATOR_SEED` chooses others, `simulation` runs many.

Oracle: a model (`tests.workqueue.model`), and the ledger of acknowledged items.
"""

import os

import pytest

from tests.workqueue.simulation import simulate

_SEED = int(os.environ.get("GENERATOR_SEED", "0"))


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 6))
def test_workers_in_a_world_of_faults(seed: int) -> None:
    simulate(seed)
