"""Indexes that are created and dropped around a snapshot. The node rewrites components of its SSTables, to which a
snapshot has hard links. The rows stay those of the database.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.format_server import FormatServer
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.made import settings_at
from tests.support.servers import running
from tests.support.waiting import wait_for
from writetime.clients.node_snapshots import new_tag, take
from writetime.lake import views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.table import create_table
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.storage.locations import find_sstables

pytestmark = pytest.mark.long

KINDS = {
    "storage-attached": "CREATE INDEX by_{column} ON {table} ({column}) USING 'sai'",
    "SASI": "CREATE CUSTOM INDEX by_{column} ON {table} ({column}) USING 'org.apache.cassandra.index.sasi.SASIIndex'",
    "secondary": "CREATE INDEX by_{column} ON {table} ({column})",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormatServer]:
    """A node that keeps incremental backups."""
    configuration = {"sasi_indexes_enabled": True, "incremental_backups": True}
    with running(FormatServer(tmp_path_factory.mktemp("indexed"), "oa", **configuration)) as server:
        yield server


@dataclass(frozen=True)
class Indexed:
    """A table of two SSTables, whose indexes are of one kind."""

    node: FormatServer
    table: str
    index: str

    @property
    def schema(self) -> TableSchema:
        return read_schema(self.node.session(), self.table)

    @property
    def folder(self) -> Path:
        keyspace, _, name = self.table.partition(".")
        assert self.schema.id is not None
        return self.node.folder / "data" / keyspace / f"{name}-{self.schema.id.hex}"

    def flush_rows(self, number: int) -> None:
        for i in range(number, 40, 2):
            self.node.write_one(f"INSERT INTO {self.table} (id, v, w) VALUES ({i}, 'v{i}', 'w{i % 3}')")
        self.node.nodetool("flush", self.table.partition(".")[0])

    def create(self, column: str) -> None:
        keyspace = self.table.partition(".")[0]
        self.node.write_one(self.index.format(column=column, table=self.table))
        query = f"SELECT index_name FROM system.\"IndexInfo\" WHERE table_name = '{keyspace}'"
        wait_for(lambda: f"by_{column}" in {row.index_name for row in self.node.session().execute(query)})

    def drop(self, column: str) -> None:
        self.node.write_one(f"DROP INDEX {self.table.partition('.')[0]}.by_{column}")

    def snapshot(self) -> Path:
        assert self.schema.id is not None
        found = take([str(self.node.folder / "data")], self.node.jmx_port, {self.table: self.schema.id}, new_tag())
        return found[self.table][0]

    def rows(self) -> list[dict[str, Any]]:
        return cql_rows(self.node.session(), self.schema)

    def loaded(self, lake: Path, place: Path) -> list[dict[str, Any]]:
        found = find_snapshots([str(place)], table=self.table)
        table = create_table(settings_at(lake, buckets=2), found.schema)
        list(backfill(table, found))
        return view_rows(views.virtual(table))


@pytest.fixture(params=KINDS)
def indexed(request: pytest.FixtureRequest, node: FormatServer) -> Indexed:
    keyspace = f"t{uuid4().hex[:10]}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    node.write_one(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    made = Indexed(node, f"{keyspace}.items", KINDS[request.param])
    # Two SSTables stay two.
    options = "compaction = {'class': 'SizeTieredCompactionStrategy', 'enabled': 'false'}"
    node.write_one(f"CREATE TABLE {made.table} (id int PRIMARY KEY, v text, w text) WITH {options}")
    made.flush_rows(0)
    made.flush_rows(1)
    return made


def assert_loaded(indexed: Indexed, snapshot: Path, tmp_path: Path) -> None:
    """From the snapshot, a copy of it, and the node's data folder, which also has the incremental backups."""
    rows = indexed.rows()
    assert len(rows) == 40
    copied = Path(shutil.copytree(snapshot, tmp_path / "copied"))
    for number, place in enumerate((snapshot, copied, indexed.node.folder / "data")):
        assert indexed.loaded(tmp_path / f"lake{number}", place) == rows


def test_an_index_is_created_after_a_snapshot(indexed: Indexed, tmp_path: Path) -> None:
    snapshot = indexed.snapshot()
    indexed.create("v")
    if "sai" in indexed.index:
        [lists, *_] = [location.read("TOC.txt").decode() for location in find_sstables(str(snapshot))]
        assert "SAI" in lists
        assert not list(snapshot.glob("*SAI*"))
    assert_loaded(indexed, snapshot, tmp_path)
    indexed.create("w")
    assert_loaded(indexed, snapshot, tmp_path / "again")


def test_an_index_is_dropped_after_a_snapshot(indexed: Indexed, tmp_path: Path) -> None:
    indexed.create("v")
    snapshot = indexed.snapshot()
    indexed.drop("v")
    assert_loaded(indexed, snapshot, tmp_path)
    indexed.create("w")
    indexed.drop("w")
    assert_loaded(indexed, snapshot, tmp_path / "again")


def test_an_index_is_rebuilt_and_its_table_compacted_after_a_snapshot(indexed: Indexed, tmp_path: Path) -> None:
    indexed.create("v")
    snapshot = indexed.snapshot()
    keyspace, _, name = indexed.table.partition(".")
    indexed.node.nodetool("rebuild_index", keyspace, name, "by_v")
    indexed.node.nodetool("compact", keyspace)
    indexed.create("w")
    assert_loaded(indexed, snapshot, tmp_path)
