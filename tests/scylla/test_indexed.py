"""Tables with materialized views and secondary indexes on a running ScyllaDB: their logs and snapshots have the rows of
the tables alone.

Oracle: the database: ScyllaDB's rows by CQL.
"""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from cassandra.cluster import Session

from tests.scylla.following import captured, settings_for
from tests.scylla.node import Node
from tests.scylla.statements import LiveGenerator, with_options
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
from writetime.lake.table import create_table
from writetime.merge import merge
from writetime.schema.system import read_schema
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, Native, quote_name
from writetime.verify.comparison import verify

INT = Native("int")
# The views and indexes have them as keys.
KEYS = (Column("seen", INT), Column("marks", Collection("map", (INT, INT))))
WRITES = 300
pytestmark = pytest.mark.usefixtures("types")


def indexed_table(live: Settings, session: Session, generator: LiveGenerator, name: str) -> TableSchema:
    """Make a table with CDC, views and indexes; return its schema."""
    made = generator.live_schema(live.cassandra.keyspace, name, clusterings=2, regulars=2)
    made = replace(made, regular=(*made.regular, *KEYS))
    session.execute(with_options(made.create_statement(), ["cdc = {'enabled': true}"]), timeout=120)
    names = [quote_name(c.name) for c in made.partition_key + made.clustering]
    shown = ", ".join(names + [quote_name(c.name) for c in made.regular])
    given = " AND ".join(f"{name} IS NOT NULL" for name in names)
    view = f"CREATE MATERIALIZED VIEW {made.full_name}"
    for statement in (
        f"{view}_m AS SELECT {shown} FROM {made.full_name} WHERE {given} AND seen IS NOT NULL "
        f"PRIMARY KEY (seen, {', '.join(names)})",
        f"{view}_o AS SELECT {names[0]} FROM {made.full_name} WHERE {given} PRIMARY KEY ({', '.join(reversed(names))})",
        f"CREATE INDEX ON {made.full_name} (seen)",
        f"CREATE INDEX ON {made.full_name} (({', '.join(names[: len(made.partition_key)])}), seen)",
        f"CREATE INDEX ON {made.full_name} (keys(marks))",
        f"CREATE INDEX ON {made.full_name} (values(marks))",
    ):
        session.execute(statement, timeout=120)
    return read_schema(session, made.full_name)


@pytest.mark.parametrize("number", range(3))
def test_a_table_with_views_and_indexes(
    live: Settings, session: Session, raw: Session, nodes: list[Node], tmp_path: Path, number: int
) -> None:
    generator = LiveGenerator(1000 * SEED + number)
    schema = indexed_table(live, session, generator, new_name("i"))
    settings = settings_for(live, schema.full_name, tmp_path)
    table = captured(settings, schema.full_name, lambda: write_to(raw, generator, schema, WRITES))
    assert assert_views(raw, schema, table) > 0
    assert verify(settings, table, 10).differences == []
    snapshot = complete_schema(settings, find_snapshots([str(node.snapshot(schema, "live")) for node in nodes]))
    lake = settings.lake.model_copy(update={"path": str(tmp_path / "loaded")})
    loaded = create_table(settings.model_copy(update={"lake": lake}), snapshot.schema)
    list(backfill(loaded, snapshot))
    as_of, times = int(time.time()), answers.write_times(raw, schema)
    changes = [
        read_file(loaded.changes.storage, file.path, change_schema(schema)) for file in loaded.changes.load().files
    ]
    assert_times(merge(changes, schema), schema, as_of, times)
    assert_views(raw, schema, loaded)
