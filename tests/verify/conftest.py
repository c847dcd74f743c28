"""A keyspace without tables of ingest for each test."""

from pathlib import Path

import pytest

from tests.support.keyspaces import keyspace_alone


@pytest.fixture(scope="session")
def ingest_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keyspace_alone(tmp_path_factory.mktemp("cql"))
