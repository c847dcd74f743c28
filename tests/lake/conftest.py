"""A keyspace without tables of ingest for each test, and an object store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.keyspaces import keyspace_alone
from tests.support.object_store import ObjectStore
from tests.support.servers import running


@pytest.fixture(scope="session")
def ingest_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keyspace_alone(tmp_path_factory.mktemp("cql"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """An object store for the tests of one module."""
    with running(ObjectStore(tmp_path_factory.mktemp("s3"))) as server:
        yield server
