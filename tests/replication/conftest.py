"""Two clusters of one node each, and a table that is captured from the first one into a lake."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cassandra import InvalidRequest
from cassandra.cluster import Session

from tests.support.chosen_seconds import ProtocolAt, rows_at
from tests.support.format_server import FormatServer
from tests.support.history import add_snapshot
from tests.support.workload import TYPES
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings, load
from writetime.core.server_settings import Cassandra
from writetime.lake.horizon import raise_complete_snapshot
from writetime.lake.table import LakeTable, create_table
from writetime.lake.views import time_now
from writetime.replication.replicating import replicator
from writetime.replication.target_table import is_list
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.schema.types import is_complex, quote_name, quote_table

KEYSPACE = "generated"
LATER_SECONDS = 20_000
"""After this time, most of the TTLs of the tests have ended."""


class Target(FormatServer):
    """A node of the newest version of Cassandra, also with `--cassandra`."""

    is_newest = True


class Clusters:
    """The source and the target."""

    def __init__(self, source: FormatServer, target: FormatServer) -> None:
        self.source, self.target = source, target
        self._at = [self._session_at(node) for node in (source, target)]
        versions = [s.execute("SELECT release_version FROM system.local").one()[0] for s in self._at]
        # Others report no times of parts.
        self._of_parts = all(version >= b"5" for version in versions)

    @staticmethod
    def _session_at(node: FormatServer) -> Session:
        session = node.session().cluster.connect()
        session.client_protocol_handler = ProtocolAt
        session.default_timeout = 60
        return session

    def settings(self, home: Path) -> Settings:
        """Return settings of the source, of a lake in a folder, and of the target as the cluster `target`."""
        return load(
            cassandra={"port": self.source.port},
            clusters={"target": Cassandra(port=self.target.port)},
            lake={"path": str(home / "lake"), "buckets": 2},
        )

    def assert_same(self, schema: TableSchema) -> None:
        """Compare all rows with their write times, now and when most TTLs have ended; and which cells have a TTL."""
        columns = [c for c in schema.static + schema.regular if self._of_parts or not is_complex(c.type)]
        names = [quote_name(column.name) for column in schema.columns]
        names += [f"{f}({quote_name(column.name)})" for column in columns for f in ("writetime", "ttl")]
        query = f"SELECT {', '.join(names)} FROM {quote_table(schema.full_name)}"
        now = int(time.time())
        for second in (now, now + LATER_SECONDS):
            wanted, found = ([_row(names, row) for row in rows_at(session, query, second)] for session in self._at)
            more, fewer = [r for r in found if r not in wanted], [r for r in wanted if r not in found]
            assert not more + fewer, f"{len(more)} rows more, {len(fewer)} fewer, such as\n{more[:1]}\n{fewer[:1]}"
            assert found == wanted


def _row(names: list[str], row: tuple[bytes | None, ...]) -> dict[str, str]:
    """Return the values of a row. A TTL that was written a moment later is another number."""
    values = zip(names, row, strict=True)
    return {name: repr(value is None if name.startswith("ttl(") else value) for name, value in values}


class Replicated:
    """A table of the source, in the lake and in the target."""

    def __init__(self, source: FormatServer, settings: Settings) -> None:
        self.settings, self._source = settings, source
        self._captures = 0
        self.lake: LakeTable

    def create(self, name: str, statement: str) -> TableSchema:
        """Create the table in the source, and in the lake."""
        self._source.write_one(statement)
        schema = read_schema(self._source.session(), f"{KEYSPACE}.{name}")
        self.lake = create_table(self.settings, schema)
        return schema

    def write(self, statements: list[str]) -> None:
        """Write to the source, which refuses some statements, such as an empty range."""
        for statement in statements:
            with suppress(InvalidRequest):
                self._source.write_one(statement)

    def capture(self) -> None:
        """Bring all writes into the lake."""
        taken_at = time_now()
        self._captures += 1
        name = self.lake.name
        self.lake.follow(read_schema(self._source.session(), name))
        add_snapshot(self.lake, take_snapshot(self.settings, name, f"taken{self._captures}"), self._captures)
        raise_complete_snapshot(self.lake, taken_at)

    def replicate(self, *, again: bool = False) -> int:
        """Replicate as a program that was just started."""
        with replicator(self.settings, self.lake, "target") as opened:
            return opened.replicate(self.lake, again=again)


def without_lists(schema: TableSchema) -> TableSchema:
    """Return a table without the lists that cannot be replicated."""

    static, regular = (
        tuple(column for column in columns if not is_list(column)) for columns in (schema.static, schema.regular)
    )
    return replace(schema, static=static, regular=regular)


@pytest.fixture(scope="session")
def clusters(cassandra_version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    del cassandra_version
    nodes = [FormatServer(tmp_path_factory.mktemp("source"), "nb"), Target(tmp_path_factory.mktemp("target"), "nb")]
    try:
        for node in nodes:
            node.start()
            node.write_one(
                f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
            )
        nodes[0].write([statement.format(ks=KEYSPACE) for statement in TYPES])
        yield Clusters(*nodes)
    finally:
        for node in nodes:
            node.stop()


@pytest.fixture
def replicated(clusters: Clusters, tmp_path: Path) -> Replicated:
    return Replicated(clusters.source, clusters.settings(tmp_path))
