"""A move to another cluster while clients write, and everything is killed: docs/replication.md.

Oracle: the answers of both clusters, with write times, after the writes have stopped.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replication.conftest import Clusters
from tests.support.captured import REPLICATION, captured_keyspace
from tests.support.format_server import KilledServer
from tests.support.moves import Move, kill, moving
from writetime.core.config import Settings
from writetime.core.server_settings import NamedCluster
from writetime.schema.system import read_schema

pytestmark = pytest.mark.long


class New(KilledServer):
    """A node of the newest version of Cassandra, also with `--cassandra`."""

    is_embedded = True


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[KilledServer, KilledServer]]:
    made = [
        kind(tmp_path / kind.__name__, "nb", commitlog_sync="batch", commitlog_segment_size="1MiB")
        for kind in (KilledServer, New)
    ]
    try:
        for node in made:
            node.start()
        yield made[0], made[1]
    finally:
        for node in made:
            node.stop()


@pytest.fixture(params=[False, True], ids=["by CQL", "with lists, by SSTables, too"])
def move(
    request: pytest.FixtureRequest,
    kafka: Settings,
    nodes: tuple[KilledServer, KilledServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Move]:
    old, new = nodes
    with captured_keyspace(old, kafka, tmp_path) as captured:
        new.write_one(f"CREATE KEYSPACE {captured.keyspace} WITH replication = {REPLICATION}")
        cluster = NamedCluster(port=new.port, sstables=str(tmp_path / "sstables") if request.param else None)
        with moving(captured, cluster, tmp_path, monkeypatch, has_list=request.param) as moved:
            yield moved


def test_a_move_while_everything_is_killed(move: Move, nodes: tuple[KilledServer, KilledServer], is_long: bool) -> None:
    old, new = nodes
    move.run(old, [lambda: kill(old), lambda: kill(new)], is_long=is_long)
    Clusters(old, new).assert_same(read_schema(old.session(), move.name))
