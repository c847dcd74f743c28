"""Recorded tables: those of `tests/data/scylla`, and those of the folders that `--recorded` names."""

from pathlib import Path

import pytest

from tests.recorded.recording import Recording, find_recordings

RECORDED = Path(__file__).parents[1] / "data" / "scylla"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that ask for `recorded` once for each recorded table."""
    if "recorded" not in metafunc.fixturenames:
        return
    folders = [RECORDED, *map(Path, metafunc.config.getoption("--recorded") or ())]
    tables = [(recording, table) for recording in find_recordings(folders) for table in recording.tables]
    metafunc.parametrize("recorded", tables, ids=[table for _, table in tables])


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> tuple[Recording, str]:
    """A recording, and one of its tables as keyspace.table."""
    return request.param
