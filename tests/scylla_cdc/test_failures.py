"""Servers that answer with an error: a cluster with one node, and failures that pass."""

from tests.scylla_cdc.conftest import Logged, Written
from tests.scylla_cdc.databases import CdcDatabase
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.source import open_source


def test_one_node_is_asked_for_the_streams_of_a_keyspace_with_three_replicas(
    cdc: CdcDatabase, logged: list[Logged], written: Written
) -> None:
    """ScyllaDB makes `system_distributed` with replication factor 3, also where it has one node."""
    keyspace = "cdc_three_replicas"
    cdc.copy_generations(keyspace)
    settings = cdc.with_options(
        generation_times=f"{keyspace}.cdc_generation_timestamps",
        generation_streams=f"{keyspace}.cdc_streams_descriptions_v2",
    )
    table = logged[0]
    with open_source(settings, table.schema.full_name) as source:
        assert source.sets.times == [s.time for s in table.sets]
        streams = {piece.stream for piece in interval(source, written.base, None, None)}
    assert streams == {stream for s in table.sets for stream in s.streams}
