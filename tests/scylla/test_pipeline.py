"""Capture, landing, row events and verify on a running ScyllaDB, with agents killed and tablets split and merged.

Oracle: the database: ScyllaDB's rows by CQL, and the acknowledged writes.
"""

from collections.abc import Callable

import pytest
from cassandra.cluster import Session

from tests.scylla.pipeline import SPLITS, Followed, Pipeline
from tests.support.generate import SEED
from tests.support.scylla_server import uses_tablets
from writetime.core.config import Settings

TABLES = [f"t{i}" for i in range(10)]
# How long is written and killed, at least.
SECONDS = 90
# All of it happens in the fixture of the first test.
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def pipeline(
    live: Settings, session: Session, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Pipeline:
    """All writes are published; a failure is recorded with its table."""
    home = tmp_path_factory.mktemp("pipeline")
    made = Pipeline(live, session, home, SEED, len(TABLES), tablets=uses_tablets(pytestconfig))
    made.run(SECONDS)
    print(f"SEED {SEED}: {made.summary()}")
    return made


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, pipeline: Pipeline) -> Followed:
    """One of the tables."""
    return pipeline.tables[request.param]


def test_programs_are_killed_and_end_well(pipeline: Pipeline) -> None:
    assert pipeline.agent.ends == {-9: 3, 0: 1}, pipeline.agent.tail()
    assert pipeline.landing.ends == {-9: 2, 0: 1}, pipeline.landing.tail()
    summary = pipeline.summary()
    assert min(summary["written"], summary["altered"]) > 0


def test_the_views_match_the_database(
    pipeline: Pipeline, table: Followed, record_property: Callable[[str, object], None]
) -> None:
    record_property("rows", pipeline.check_views(table))


def test_row_events_lead_to_the_view(
    pipeline: Pipeline, table: Followed, record_property: Callable[[str, object], None]
) -> None:
    record_property("events", pipeline.check_row_events(table))


def test_verify_finds_no_difference(pipeline: Pipeline, table: Followed) -> None:
    assert pipeline.verify(table).differences == []


def test_tablets_are_split_and_merged(pipeline: Pipeline, table: Followed, pytestconfig: pytest.Config) -> None:
    """With vnodes, no table has separate streams."""
    counts = pipeline.streams(table)
    if uses_tablets(pytestconfig):
        assert max(counts) == max(SPLITS)
        assert counts[-1] == SPLITS[-1]
    else:
        assert counts == []
