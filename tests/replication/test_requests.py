"""Requests that the target does not answer, or refuses. Oracle: the rows that it has afterwards."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session

from tests.replication.conftest import Clusters
from tests.support.generate import KEYSPACE
from tests.support.proxy import Proxy
from writetime.clients.database import DRIVER_FAULTS, is_without_answer
from writetime.core.errors import WritetimeError
from writetime.core.server_settings import Cassandra, NamedCluster
from writetime.replication.cell_statements import NO_TTL, CellStatements
from writetime.replication.cluster_sessions import connected
from writetime.replication.requests import WriteBatch, send
from writetime.schema.system import read_schema

pytestmark = pytest.mark.long

_TABLE = f"{KEYSPACE}.requests"
_ROWS, _FAULTY = 10, 4
_MARK = b"the faulty one"
_REFUSED_TTL = 2**31 - 1
_TIMEOUT_SECONDS = 1.5


@pytest.fixture
def proxy(clusters: Clusters) -> Iterator[Proxy]:
    for statement in (f"DROP TABLE IF EXISTS {_TABLE}", f"CREATE TABLE {_TABLE} (k int PRIMARY KEY, v text)"):
        clusters.target.write_one(statement)
    with Proxy(Cassandra(port=clusters.target.port), random.Random(1)) as found:
        yield found


@pytest.fixture
def session(clusters: Clusters, proxy: Proxy, tmp_path: Path) -> Iterator[Session]:
    target = NamedCluster(port=proxy.port, request_timeout_seconds=_TIMEOUT_SECONDS)
    with connected(clusters.settings(tmp_path).model_copy(update={"clusters": {"target": target}}), "target") as found:
        yield found


class Attempts:
    """Counts the requests with the marked value, and drops the first ones."""

    def __init__(self, dropped: int) -> None:
        self.count = 0
        self._dropped = dropped

    def __call__(self, request: bytes) -> bool:
        self.count += _MARK in request
        return _MARK in request and self.count <= self._dropped


def batches(session: Session, *, ttl: int = NO_TTL, attempts: int = 5) -> list[WriteBatch]:
    """Return one request per row. One of them has the mark, and this TTL."""
    statements = CellStatements(session, read_schema(session, _TABLE))
    made = []
    for key in range(_ROWS):
        key_bytes, is_faulty = key.to_bytes(4, "big"), key == _FAULTY
        values = {"v": _MARK if is_faulty else b"other"}
        insert = statements.insert([key_bytes], values, 1, ttl if is_faulty else NO_TTL)
        made.append(WriteBatch(key_bytes, [insert], attempts))
    return made


def keys(clusters: Clusters) -> set[int]:
    return {row.k for row in clusters.target.session().execute(f"SELECT k FROM {_TABLE}")}


def test_a_request_without_an_answer_is_sent_again(clusters: Clusters, proxy: Proxy, session: Session) -> None:
    proxy.drops = attempts = Attempts(dropped=2)
    send(session, batches(session), "a test")
    assert keys(clusters) == set(range(_ROWS))
    assert attempts.count >= 3


@pytest.mark.parametrize("most", [1, 3])
def test_it_is_sent_so_often_and_the_others_count(
    clusters: Clusters, proxy: Proxy, session: Session, most: int
) -> None:
    made = batches(session, attempts=most)
    proxy.drops = attempts = Attempts(dropped=_ROWS)
    with pytest.raises(DRIVER_FAULTS) as caught:
        send(session, made, "a test")
    assert is_without_answer(caught.value)
    assert attempts.count == most
    assert keys(clusters) == set(range(_ROWS)) - {_FAULTY}


def test_a_refused_request_is_not_sent_again(clusters: Clusters, proxy: Proxy, session: Session) -> None:
    made = batches(session, ttl=_REFUSED_TTL)
    proxy.drops = attempts = Attempts(dropped=0)
    with pytest.raises(WritetimeError, match=rf"refuses a write of a test: .*ttl.*0x{_FAULTY:08x}"):
        send(session, made, "a test")
    assert attempts.count == 1
    assert keys(clusters) == set(range(_ROWS)) - {_FAULTY}
