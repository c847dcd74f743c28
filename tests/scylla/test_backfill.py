"""Snapshots of a running ScyllaDB, by its nodetool, in the lake: rows, write times and TTLs.

Oracle: the database: ScyllaDB's rows, write times and TTLs by CQL.
"""

import time
from pathlib import Path

import pyarrow as pa
import pytest
from cassandra.cluster import Session

from tests.scylla.node import Node
from tests.scylla.statements import StoredGenerator, table_options, with_options
from tests.scylla.workload import write_to
from tests.support import answers
from tests.support.generate import SEED
from tests.support.lake_views import assert_views
from tests.support.merged import assert_times
from tests.support.scylla_server import new_name
from writetime.changes.model import change_schema
from writetime.core.config import Settings
from writetime.delta.parquet import read_file
from writetime.lake.backfill import backfill, complete_schema, find_snapshots
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
pytestmark = pytest.mark.usefixtures("types")


def alter(session: Session, generator: StoredGenerator, schema: TableSchema) -> TableSchema:
    """Drop a column, if one may go, and add one."""
    table = schema.full_name
    columns = schema.static + schema.regular
    if gone := [c for c in columns if not (isinstance(c.type, Udt) and is_complex(c.type))]:
        session.execute(f"ALTER TABLE {table} DROP {quote_name(generator.random.choice(gone).name)}", timeout=120)
    session.execute(f"ALTER TABLE {table} ADD added {generator.cql_type()}", timeout=120)
    return read_schema(session, table)


def rewrite(node: Node, generator: StoredGenerator, schema: TableSchema) -> None:
    """Compact, scrub or upgrade the SSTables of a table, or leave them as they are."""
    keyspace, name = schema.keyspace, schema.name
    commands = [
        ("compact", keyspace, name),
        ("scrub", "--no-snapshot", keyspace, name),
        ("upgradesstables", "--include-all-sstables", keyspace, name),
    ]
    if (chosen := generator.random.choice([None, *commands])) is not None:
        node.run(*chosen)


def changes_of(table: LakeTable) -> list[pa.Table]:
    """Return all changes that the lake has of a table."""
    schema = change_schema(table.schema())
    return [read_file(table.changes.storage, file.path, schema) for file in table.changes.load().files]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda c: "default" if c is None else c or "none")
def test_a_snapshot_matches_the_database(
    live: Settings,
    session: Session,
    raw: Session,
    nodes: list[Node],
    tmp_path: Path,
    compression: str | None,
    seed: int,
) -> None:
    generator = StoredGenerator(1000 * SEED + 10 * COMPRESSIONS.index(compression) + seed)
    made = generator.live_schema(live.cassandra.keyspace, new_name("b"), regulars=generator.random.randint(1, 6))
    options = table_options(generator.random)
    if compression is not None:
        options.append(f"compression = {{'sstable_compression': '{compression}'}}")
    session.execute(with_options(generator.renamed(made).create_statement(), options), timeout=120)
    write_to(raw, generator, read_schema(session, made.full_name))
    for node in nodes:
        node.run("flush", made.keyspace, made.name)
    schema = alter(session, generator, read_schema(session, made.full_name))
    write_to(raw, generator, schema)
    # The deletions are in another file than the writes.
    for node in nodes:
        node.run("flush", made.keyspace, made.name)
        rewrite(node, generator, schema)
    write_to(raw, generator, schema)
    folders = [str(node.snapshot(schema, "live")) for node in nodes]
    settings = live.model_copy(
        update={"lake": live.lake.model_copy(update={"path": str(tmp_path / "lake"), "buckets": 4})}
    )
    snapshot = complete_schema(settings, find_snapshots(folders))
    table = create_table(settings, snapshot.schema)
    assert sum(count for _, count in backfill(table, snapshot)) > 0
    # Not later: the first merge of a test run is compiled, which takes minutes on a busy machine.
    as_of, times = int(time.time()), answers.write_times(raw, schema)
    labelled = table.schema()
    assert_times(merge(changes_of(table), labelled), labelled, as_of, times)
    assert_views(raw, schema, table)
