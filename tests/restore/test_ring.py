"""The token ranges of nodes, by the driver's metadata of a ring. Oracle: the driver's replicas of single tokens."""

import random
import uuid

import pytest
from cassandra.metadata import KeyspaceMetadata, Metadata
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host

from writetime.bulk_load.ring import nodes_in
from writetime.core.errors import WritetimeError

_FIRST, _LAST = -(1 << 63), (1 << 63) - 1
_NETWORK = "org.apache.cassandra.locator.NetworkTopologyStrategy"


def _ring(
    replication: dict[str, str],
    tokens: list[list[int]],
    strategy: str = _NETWORK,
    partitioner: str = "Murmur3Partitioner",
) -> Metadata:
    """A ring of nodes with some tokens each, in the data centers a and b in turn."""
    metadata = Metadata()
    by_host = {}
    for number, own in enumerate(tokens):
        host = Host(f"10.0.0.{number}", SimpleConvictionPolicy, host_id=uuid.UUID(int=number))
        host.set_location_info("ab"[number % 2], f"rack{number}")
        metadata.add_or_return_host(host)
        by_host[host] = [str(token) for token in own]
    metadata.keyspaces = {"shop": KeyspaceMetadata("shop", True, strategy, dict(replication))}
    metadata.rebuild_token_map(f"org.apache.cassandra.dht.{partitioner}", by_host)
    return metadata


@pytest.mark.parametrize(
    ("replication", "ends"),
    [
        ({"a": "1"}, []),
        ({"a": "1", "b": "1"}, [_FIRST]),
        ({"a": "2", "b": "1"}, [_LAST]),
        ({"b": "1"}, [_FIRST, _LAST]),
        # The third replica is transient: it gets only writes that a full one missed.
        ({"a": "3/1"}, [_FIRST]),
    ],
)
def test_each_token_is_in_the_ranges_of_its_replicas(replication: dict[str, str], ends: list[int]) -> None:
    chooser = random.Random(str(replication))
    tokens = [[chooser.randrange(_FIRST, _LAST) for _ in range(5)] for _ in range(6)]
    tokens[0] += ends
    metadata = _ring(replication, tokens)
    nodes, of_one = (nodes_in(metadata, "shop", once=once) for once in (False, True))
    assert metadata.token_map is not None
    assert metadata.token_map.token_class is not None
    near = [token + step for own in tokens for token in own for step in (-1, 0, 1)]
    for token in [_FIRST, _LAST, 0, *near]:
        if not _FIRST <= token <= _LAST:
            continue
        replicas = metadata.token_map.get_replicas("shop", metadata.token_map.token_class(token))
        having, loading = (
            {host for host, node in found.items() if any(r.first <= token <= r.last for r in node.ranges)}
            for found in (nodes, of_one)
        )
        assert having == {str(host.host_id) for host in replicas}
        assert loading == {str(replicas[0].host_id)}
    for node in [*nodes.values(), *of_one.values()]:
        assert all(one.last < other.first for one, other in zip(node.ranges, node.ranges[1:], strict=False))


@pytest.mark.parametrize(
    ("replication", "strategy", "partitioner", "fault"),
    [
        ({"west": "3"}, _NETWORK, "Murmur3Partitioner", "no node has the tokens .* of the keyspace shop: correct its"),
        ({}, "org.apache.cassandra.locator.LocalStrategy", "Murmur3Partitioner", "no node has the tokens"),
        ({"a": "1"}, _NETWORK, "RandomPartitioner", "the database has the partitioner .*RandomPartitioner; the lake"),
        ({"a": "1"}, _NETWORK, "ByteOrderedPartitioner", "the database has the partitioner .*; the lake has Murmur3"),
    ],
)
def test_a_ring_that_cannot_get_the_rows(
    replication: dict[str, str], strategy: str, partitioner: str, fault: str
) -> None:
    metadata = _ring(replication, [[11], [12]], strategy, partitioner)
    with pytest.raises(WritetimeError, match=fault):
        nodes_in(metadata, "shop", once=False)
    with pytest.raises(WritetimeError, match="the database has no keyspace other: create it"):
        nodes_in(metadata, "other", once=False)
