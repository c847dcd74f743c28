"""Two clusters of one node each, and a table that is captured from the first one into a lake."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session

from tests.support.chosen_seconds import ProtocolAt, rows_at
from tests.support.format_server import FormatServer
from tests.support.generate import KEYSPACE
from tests.support.replicated import Replicated
from tests.support.workload import TYPES
from writetime.core.config import Settings, load
from writetime.core.server_settings import NamedCluster
from writetime.schema.table import TableSchema
from writetime.schema.types import is_complex, quote_name, quote_table

LATER_SECONDS = 20_000
"""After this time, most of the TTLs of the tests have ended."""


class Target(FormatServer):
    """A node of the embedded version of Cassandra, also with `--cassandra`."""

    is_embedded = True


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
        """Return settings of the source, of a lake in a folder, and of the target as the clusters `target` and
        `by_sstables`.
        """
        return load(
            cassandra={"port": self.source.port},
            clusters={
                "target": NamedCluster(port=self.target.port),
                "by_sstables": NamedCluster(port=self.target.port, sstables=str(home / "sstables")),
            },
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
            if found == wanted:
                continue
            more, fewer = [r for r in found if r not in wanted], [r for r in wanted if r not in found]
            assert more + fewer, "the rows have another order"
            raise AssertionError(f"{len(more)} rows more, {len(fewer)} fewer, such as\n{more[:1]}\n{fewer[:1]}")

    def rests_of_ttls(self, schema: TableSchema, column: str) -> list[dict[tuple[bytes | None, ...], int]]:
        """Return for both clusters the rest of the TTL of a column of each row, by its key, as of the same second."""
        keys = [quote_name(each.name) for each in schema.partition_key + schema.clustering]
        query = f"SELECT {', '.join(keys)}, ttl({quote_name(column)}) FROM {quote_table(schema.full_name)}"
        now = int(time.time())
        return [{row[:-1]: int.from_bytes(row[-1], "big") for row in rows_at(s, query, now)} for s in self._at]


def _row(names: list[str], row: tuple[bytes | None, ...]) -> dict[str, str]:
    """Return the values of a row. A TTL that was written a moment later is another number."""
    values = zip(names, row, strict=True)
    return {name: repr(value is None if name.startswith("ttl(") else value) for name, value in values}


# Modules run in several processes at once, so the servers of each would need too much memory to the end.
@pytest.fixture(scope="module")
def clusters(cassandra_version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    del cassandra_version
    source = FormatServer(tmp_path_factory.mktemp("source"), "nb", materialized_views_enabled=True)
    nodes = [source, Target(tmp_path_factory.mktemp("target"), "nb")]
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


@pytest.fixture
def carried(clusters: Clusters, tmp_path: Path) -> Replicated:
    """A table that is replicated with SSTables, too."""
    return Replicated(clusters.source, clusters.settings(tmp_path), "by_sstables")
