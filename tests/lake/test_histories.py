"""A few differential histories; see `tests.lake.histories`, which runs thousands.

Oracle: the database: rows by CQL, by `tests.lake.histories`.
"""

import pytest

from tests.lake.histories.node import Node
from tests.lake.histories.plan import Plan, make_plan, size
from tests.lake.histories.run import Failure, run_plans, shrink
from tests.support.generate import KEYSPACE, SEED, create_udts
from writetime.core.config import Settings

pytestmark = pytest.mark.long

_PLANS, _PLANS_LONG = 1, 4
_HISTORIES, _HISTORIES_LONG = 2, 4


def test_the_lake_matches_the_database(cassandra: Settings, is_long: bool) -> None:
    with Node(cassandra.cassandra.port) as node:
        # Another folder of tests may have used it on this server.
        node.execute(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
        for statement in create_udts():
            node.execute(statement)
        try:
            count, histories = (_PLANS_LONG, _HISTORIES_LONG) if is_long else (_PLANS, _HISTORIES)
            plans = [make_plan(100 * SEED + n, f"t{n}", histories=histories, rounds=3) for n in range(1, count + 1)]
            result = run_plans(plans, node)
        finally:
            node.execute(f"DROP KEYSPACE {KEYSPACE}")
    assert not result.failures, "\n".join(f"{f.plan}\n{f.reason}" for f in result.failures)
    assert result.comparisons >= 2 * len(plans)


def test_a_failing_plan_is_made_small() -> None:
    plan = make_plan(1, "t", histories=2)
    writes = [item for each in plan.rounds for item in each.of("write")]

    def fails(candidate: Plan) -> Failure | None:
        left = [(i.kind, i.second, i.timestamp) for each in candidate.rounds for i in each.items]
        needed = [(i.kind, i.second, i.timestamp) for i in (writes[3], writes[-2])]
        return Failure(candidate, 0, "both are there") if all(n in left for n in needed) else None

    small = shrink(Failure(plan, 0, ""), fails)
    assert size(small.plan) == 2
    assert f"INTO {KEYSPACE}.t" in str(plan)
