"""SSTables that the database itself has compacted: their files end with an empty chunk."""

import pytest

from tests.support.commands import run
from tests.support.lake_answers import cql_rows, view_rows
from writetime.clients import node_snapshots
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.lake import views
from writetime.lake.table import open_table
from writetime.runtime.nodetool import nodetool
from writetime.schema.system import read_schema

pytestmark = pytest.mark.long

COMPRESSIONS = {"compressed": "{'class': 'LZ4Compressor'}", "plain": "{'enabled': 'false'}"}


def test_sstables_that_the_database_compacted(settings: Settings) -> None:
    keyspace = settings.cassandra.keyspace
    with connect(settings) as session:
        session.execute(f"USE {keyspace}")
        for table, compression in COMPRESSIONS.items():
            session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text) WITH compression = {compression}")
        _, port = node_snapshots.local_node(session)
        for part in range(2):
            for table in COMPRESSIONS:
                for i in range(100):
                    session.execute(f"INSERT INTO {table} (id, v) VALUES ({i}, '{part}')")
            nodetool(port, "flush", "--", keyspace, *COMPRESSIONS)
        nodetool(port, "compact", "--", keyspace, *COMPRESSIONS)
        for name in (f"{keyspace}.{table}" for table in COMPRESSIONS):
            run("backfill", name, *run("snapshot", name).split())
            assert view_rows(views.virtual(open_table(settings, name))) == cql_rows(session, read_schema(session, name))
