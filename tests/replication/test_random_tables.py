"""Random tables of all types, with writes of every kind, in another cluster.

Oracle: the answers of the source, with write times, at one second and at a later one.
"""

import random

import pytest

from tests.replication.conftest import Clusters
from tests.support.generate import SEED, Generator
from tests.support.replicated import Replicated, without_lists
from writetime.lake import state

pytestmark = pytest.mark.long

_TABLES, _TABLES_LONG = 4, 40
_PHASES, _STATEMENTS = 4, 60


@pytest.mark.parametrize("by_sstables", [False, True])
def test_each_batch_is_answered_alike(
    clusters: Clusters, replicated: Replicated, carried: Replicated, is_long: bool, *, by_sstables: bool
) -> None:
    table = carried if by_sstables else replicated
    for number in range(_TABLES_LONG if is_long else _TABLES):
        generator = Generator(100 * SEED + number)
        chooser = random.Random(number)
        name = f"random{number}_{by_sstables}".lower()
        made = generator.schema(name)
        if not by_sstables:
            made = without_lists(made)
        places = generator.places(made)
        schema = table.create(name, made.create_statement())
        for _ in range(_PHASES):
            table.write(generator.writes(made, _STATEMENTS, places))
            table.capture()
            if chooser.random() < 0.5:
                state.fold(table.lake)
            table.replicate()
            clusters.assert_same(schema)
