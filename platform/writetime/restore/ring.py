"""The token ranges that each node of a database has replicas of."""

from collections import defaultdict
from itertools import pairwise

from cassandra.cluster import Session

from writetime.clients.database import find_replicas
from writetime.core.errors import WritetimeError
from writetime.files.key_ranges import TokenRange
from writetime.restore.sstables import TargetNode

_FIRST, _LAST = -(1 << 63), (1 << 63) - 1


def nodes_of(session: Session, keyspace: str) -> dict[str, TargetNode]:
    """Return the nodes that have replicas of a keyspace, by host id, with their token ranges in order. Raises
    WritetimeError: there is no such keyspace.
    """
    find_replicas(session, keyspace)
    assert session.cluster is not None
    metadata = session.cluster.metadata
    if keyspace not in metadata.keyspaces:
        raise WritetimeError(f"the database has no keyspace {keyspace}: create it with the replication that it needs")
    addresses: dict[str, str] = {}
    ranges: dict[str, list[TokenRange]] = defaultdict(list)
    ring = metadata.token_map.ring
    # A node has the range that ends with its token. The one after the last token goes on at the first token.
    ends = [_FIRST - 1, *(token.value for token in ring), _LAST]
    for (before, end), token in zip(pairwise(ends), [*ring, ring[0]], strict=True):
        if before == end:
            continue
        for host in metadata.token_map.get_replicas(keyspace, token):
            own = ranges[str(host.host_id)]
            addresses[str(host.host_id)] = str(host.address)
            start = own.pop().first if own and own[-1].last == before else before + 1
            own.append(TokenRange(start, end))
    return {host: TargetNode(addresses[host], tuple(ranges[host])) for host in sorted(ranges)}
