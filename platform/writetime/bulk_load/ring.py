"""The token ranges whose SSTables each node of a database imports."""

from collections import defaultdict
from itertools import pairwise

from cassandra.cluster import Session
from cassandra.metadata import Metadata, Murmur3Token

from writetime.bulk_load.sstables import TargetNode
from writetime.clients.database import DRIVER_FAULTS, no_answer
from writetime.core.errors import Transient, WritetimeError
from writetime.files.key_ranges import TokenRange

_FIRST, _LAST = -(1 << 63), (1 << 63) - 1


def nodes_of(session: Session, keyspace: str, *, once: bool) -> dict[str, TargetNode]:
    """Return the nodes that have replicas of a keyspace, by host id, with their token ranges in order. `once`: each
    range belongs to one node only. Its replicas may be others: with tablets, ScyllaDB does not place them by the ring.

    Raises:
        Transient: the ring cannot be read now.
        WritetimeError: there is no such keyspace, its replication names no nodes, or the database has tokens of another
            kind than the lake.
    """
    assert session.cluster is not None
    try:
        session.cluster.refresh_keyspace_metadata(keyspace, max_schema_agreement_wait=0)
    except DRIVER_FAULTS as e:
        reason = no_answer(session, e)
        raise Transient(
            f"the replication of {keyspace} cannot be read ({reason}): start the node, and run this again"
        ) from None
    return nodes_in(session.cluster.metadata, keyspace, once=once)


def nodes_in(metadata: Metadata, keyspace: str, *, once: bool) -> dict[str, TargetNode]:
    """Return the same by the metadata of a cluster."""
    if keyspace not in (metadata.keyspaces or {}):
        raise WritetimeError(f"the database has no keyspace {keyspace}: create it with the replication that it needs")
    if metadata.token_map is None or metadata.token_map.token_class is not Murmur3Token:
        raise WritetimeError(
            f"the database has the partitioner {metadata.partitioner}; the lake has Murmur3Partitioner"
        )
    addresses: dict[str, str] = {}
    ranges: dict[str, list[TokenRange]] = defaultdict(list)
    ring = metadata.token_map.ring or []
    # A node has the range that ends with its token. The one after the last token goes on at the first token.
    ends = [_FIRST - 1, *(token.value for token in ring), _LAST]
    for (before, end), token in zip(pairwise(ends), [*ring, ring[0]], strict=True):
        if before == end:
            continue
        replicas = metadata.token_map.get_replicas(keyspace, token)
        if not replicas:
            raise WritetimeError(
                f"no node has the tokens {before + 1} to {end} of the keyspace {keyspace}: correct its replication, "
                "and the names of data centers in it"
            )
        for host in replicas[:1] if once else replicas:
            own = ranges[str(host.host_id)]
            addresses[str(host.host_id)] = str(host.address)
            start = own.pop().first if own and own[-1].last == before else before + 1
            own.append(TokenRange(start, end))
    return {host: TargetNode(addresses[host], tuple(ranges[host])) for host in sorted(ranges)}
