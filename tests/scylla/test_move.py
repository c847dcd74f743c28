"""A move from Cassandra to a running ScyllaDB while clients write, and everything is killed: docs/replication.md.

ScyllaDB is killed by the command of `--scylla-restart`; without it, all others are.

Oracle: the answers of both clusters, with the write times and TTLs of cells. ScyllaDB reports none of parts of
collections, so deletions at the same times in both clusters must leave the same.
"""

import random
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session

from tests.support import answers, scylla_server
from tests.support.captured import captured_keyspace
from tests.support.format_server import KilledServer
from tests.support.moves import Move, kill, moving
from tests.support.waiting import wait_for
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.errors import Transient
from writetime.core.server_settings import Cassandra, NamedCluster
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.schema.types import quote_table

pytestmark = pytest.mark.timeout(3600)

# How often, and of how many partitions.
_DELETIONS, _DELETED = 8, 500
# A request that is sent again, to a server that starts, has the TTL of the first time.
_TTL_SECONDS = 30


@pytest.fixture
def old(tmp_path: Path) -> Iterator[KilledServer]:
    node = KilledServer(tmp_path / "old", "nb", commitlog_sync="batch", commitlog_segment_size="1MiB")
    try:
        node.start()
        yield node
    finally:
        node.stop()


@pytest.fixture
def restart(pytestconfig: pytest.Config, kafka: Settings) -> list[Callable[[], None]]:
    """What kills ScyllaDB and starts it, until it answers; empty without the command."""
    command = pytestconfig.getoption("--scylla-restart")
    if not command:
        return []
    with connect(kafka) as session:
        sync = scylla_server.one(session, "SELECT value FROM system.config WHERE name = 'commitlog_sync'").value
    assert "batch" in sync, (
        "it loses writes that it has answered when it is killed: start it with commitlog_sync: batch"
    )

    def answers_again() -> bool:
        try:
            with connect(kafka):
                return True
        except Transient:
            return False

    def run() -> None:
        subprocess.run(command, shell=True, check=True, timeout=600, stdout=subprocess.DEVNULL)
        wait_for(answers_again)

    return [run]


@pytest.fixture
def move(
    kafka: Settings,
    old: KilledServer,
    make_keyspace: Callable[[Settings], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Move]:
    with captured_keyspace(old, kafka.model_copy(update={"cassandra": Cassandra()}), tmp_path) as captured:
        own = kafka.cassandra.model_copy(update={"keyspace": captured.keyspace})
        make_keyspace(kafka.model_copy(update={"cassandra": own}))
        with moving(captured, NamedCluster(**dict(kafka.cassandra)), tmp_path, monkeypatch, has_list=True) as moved:
            yield moved


def test_a_move_to_scylladb_while_everything_is_killed(
    move: Move, old: KilledServer, kafka: Settings, restart: list[Callable[[], None]], is_long: bool
) -> None:
    chooser = move.run(old, [lambda: kill(old), *restart], is_long=is_long)
    schema = read_schema(old.session(), move.name)
    with answers.raw_session(old.port) as source, scylla_server.raw_session(kafka) as target:
        assert_same(source, target, schema)
        for _ in range(_DELETIONS):
            for statement in list(deletions(source, schema, chooser)):
                for session in (source, target):
                    session.execute(statement)
            assert_same(source, target, schema)


def assert_same(source: Session, target: Session, schema: TableSchema) -> None:
    """Compare all rows, and the write times and TTLs of cells."""
    wanted, found = (answers.rows(session, schema) for session in (source, target))
    assert found == wanted, [pair for pair in zip(wanted, found, strict=False) if pair[0] != pair[1]][:2]
    pairs = zip(*(answers.write_times(session, schema) for session in (source, target)), strict=True)
    for row, (one, other) in zip(wanted, pairs, strict=True):
        assert one.keys() == other.keys()
        differing = [name for name, value in one.items() if not is_same(name, value, other[name])]
        assert not differing, f"{differing} of {row}: {one}, and in ScyllaDB {other}"


def is_same(name: str, one: int | None, other: int | None) -> bool:
    """Return whether two write times, or TTLs, of a cell are the same."""
    if one is None or other is None or not name.startswith("ttl "):
        return one == other
    return abs(one - other) <= _TTL_SECONDS


def deletions(source: Session, schema: TableSchema, chooser: random.Random) -> Iterator[str]:
    """Make deletions of some partitions, each at the time of one of its older cells."""
    times: dict[int, list[int]] = defaultdict(list)
    for row, cells in zip(answers.rows(source, schema), answers.write_times(source, schema), strict=True):
        found = [at for name, at in cells.items() if at is not None and not name.startswith("ttl ")]
        if found and (key := row[0]) is not None:
            times[int.from_bytes(key, "big")] += found
    for key in chooser.sample(sorted(times), min(len(times), _DELETED)):
        at = chooser.choice(sorted(times[key])[: len(times[key]) // 3 + 1])
        yield f"DELETE FROM {quote_table(schema.full_name)} USING TIMESTAMP {at} WHERE k = {key}"
