"""Snapshots of a running ScyllaDB, by its nodetool, in the lake: rows, write times and TTLs."""

import time
from pathlib import Path

import pyarrow as pa
import pytest
from cassandra import InvalidRequest
from cassandra.cluster import Session

from tests.scylla.node import Node
from tests.scylla.workload import TYPES, LiveGenerator
from tests.support import answers
from tests.support.generate import SEED
from tests.support.lake_views import assert_views
from tests.support.merged import assert_times
from tests.support.scylla_server import new_name
from writetime.changes.model import change_schema
from writetime.core.config import Settings
from writetime.lake.backfill import backfill, complete_schema, find_snapshots
from writetime.lake.parquet import read_file
from writetime.lake.table import LakeTable, create_table
from writetime.merge import merge
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.schema.types import Udt, is_complex, quote_name

# Several tables of each, as each seed makes another table.
COMPRESSIONS = [
    None,
    "LZ4Compressor",
    "SnappyCompressor",
    "DeflateCompressor",
    "ZstdCompressor",
    "LZ4WithDictsCompressor",
    "ZstdWithDictsCompressor",
    "",
]
SEEDS = range(4)
WRITES = 80


@pytest.fixture(scope="module", autouse=True)
def types(live: Settings, session: Session) -> None:
    """Create the types that tables use."""
    for statement in TYPES:
        session.execute(statement.replace("{ks}", live.cassandra.keyspace), timeout=120)


def write(session: Session, generator: LiveGenerator, schema: TableSchema) -> None:
    """Write to a table; the generator does not know which keys and ranges are empty."""
    for statement in generator.writes(schema, WRITES):
        try:
            session.execute(statement)
        except InvalidRequest as e:
            if "DELETE" not in statement and "Key may not be empty" not in str(e):
                raise AssertionError(f"{e}: {statement}") from None


def alter(session: Session, generator: LiveGenerator, schema: TableSchema) -> TableSchema:
    """Drop a column, if one may go, and add one."""
    table = schema.full_name
    columns = schema.static + schema.regular
    if gone := [c for c in columns if not (isinstance(c.type, Udt) and is_complex(c.type))]:
        session.execute(f"ALTER TABLE {table} DROP {quote_name(generator.random.choice(gone).name)}", timeout=120)
    session.execute(f"ALTER TABLE {table} ADD added {generator.cql_type()}", timeout=120)
    return read_schema(session, table)


def changes_of(table: LakeTable) -> list[pa.Table]:
    """Return all changes that the lake has of a table."""
    schema = change_schema(table.schema())
    return [read_file(table.changes.storage, file.path, schema) for file in table.changes.load().files]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda c: "default" if c is None else c or "none")
def test_a_snapshot_matches_the_database(
    live: Settings, session: Session, nodes: list[Node], tmp_path: Path, compression: str | None, seed: int
) -> None:
    generator = LiveGenerator(1000 * SEED + 10 * COMPRESSIONS.index(compression) + seed)
    generator._ttls = [1000, 86_400]
    made = generator.live_schema(live.cassandra.keyspace, new_name("b"), regulars=generator.random.randint(1, 6))
    statement = made.create_statement()
    if compression is not None:
        joiner = "AND" if " WITH " in statement else "WITH"
        statement += f" {joiner} compression = {{'sstable_compression': '{compression}'}}"
    session.execute(statement, timeout=120)
    write(session, generator, made)
    for node in nodes:
        node.run("flush", made.keyspace, made.name)
    schema = alter(session, generator, read_schema(session, made.full_name))
    write(session, generator, schema)
    # The deletions are in another file than the writes.
    for node in nodes:
        node.run("flush", made.keyspace, made.name)
    write(session, generator, schema)
    folders = [str(node.snapshot(schema, "live")) for node in nodes]
    settings = live.model_copy(
        update={"lake": live.lake.model_copy(update={"path": str(tmp_path / "lake"), "buckets": 4})}
    )
    snapshot = complete_schema(settings, find_snapshots(folders))
    table = create_table(settings, snapshot.schema)
    assert sum(count for _, count in backfill(table, snapshot)) > 0
    with answers.raw_session(live.cassandra.port, live.cassandra.contact_points[0]) as raw:
        times = answers.write_times(raw, schema)
        assert_times(merge(changes_of(table), schema), schema, int(time.time()), times)
        assert_views(raw, schema, table)
