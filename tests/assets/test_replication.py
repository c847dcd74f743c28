"""The asset of a table's copy in another cluster. Oracle: the rows of the database."""

import os
from dataclasses import replace
from pathlib import Path

from dagster import DagsterInstance, materialize

from tests.assets.runs import numbers
from tests.support.made import SCHEMA, add, write
from tests.support.settings import write_settings
from writetime.clients.database import connect
from writetime.core.config import Settings, TableEntry
from writetime.core.server_settings import NamedCluster
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import create_table
from writetime_dagster.assets.naming import key_of
from writetime_dagster.assets.replication import build_replica_asset
from writetime_dagster.resources import LakeResource


def test_each_run_writes_the_changes_that_the_cluster_lacks(settings: Settings) -> None:
    # The lake has the table, and the cluster does not.
    own = settings.model_copy(update={"clusters": {"new": NamedCluster(**dict(settings.cassandra))}})
    write_settings(own, Path(os.environ["WRITETIME_CONFIG"]))
    schema = replace(SCHEMA, keyspace=settings.cassandra.keyspace)
    table, name = create_table(settings, schema), schema.full_name
    asset = build_replica_asset(FollowedTable(name, TableEntry(replicate_to="new")), "new")

    def run() -> dict[str, object]:
        resources = {"lake": LakeResource()}
        result = materialize([asset], instance=DagsterInstance.ephemeral(), resources=resources)
        return numbers(result, key_of(name, "replica"))

    add(table, [write(1, 0, 10, v="a"), write(2, 0, 10, v="b")], 0, schema)
    assert run()["rows"] == 2
    add(table, [write(1, 0, 20, v="c")], 1, schema)
    assert run()["rows"] == 1
    with connect(settings) as session:
        rows = {(row.id, row.v, row.at) for row in session.execute(f"SELECT id, v, writetime(v) AS at FROM {name}")}
    assert rows == {(1, "c", 20), (2, "b", 10)}
