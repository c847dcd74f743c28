"""The database's records of TRUNCATE: `system.local.truncated_at` of Cassandra, `system.truncated` of ScyllaDB."""

import struct
from collections.abc import Mapping
from uuid import UUID

from cassandra.cluster import Session

from writetime.capture.node_schemas import Node
from writetime.changes.starts import Truncation
from writetime.clients.database import DRIVER_FAULTS, DatabaseUnreachable, driver_reason, is_without_answer, local_nodes

# The id of a segment, the offset in it, and the time in milliseconds (`SystemKeyspace.truncationAsMapEntry`).
_RECORD = struct.Struct(">qiq")


def read_truncations(node: Node) -> tuple[Mapping[UUID, Truncation], Mapping[UUID, str]]:
    """Return the last truncation of each table that the node has truncated, by the table's id. A record that cannot be
    read affects only its table. The second value has the reasons, by the table's id. Raise Unreachable if the node does
    not answer.
    """
    records = node.rows("SELECT truncated_at FROM system.local")[0]["truncated_at"] or {}
    found, faults = {}, {}
    for table_id, record in records.items():
        try:
            segment, offset, milliseconds = _RECORD.unpack(record)
        except struct.error:
            faults[table_id] = (
                f"the record of its last TRUNCATE in system.local is invalid (0x{record.hex()}, {_RECORD.size} bytes "
                "are expected): TRUNCATE the table again, or report this with the version of Cassandra"
            )
            continue
        found[table_id] = Truncation(milliseconds * 1000, segment, offset)
    return found, faults


def read_cluster_truncations(session: Session, table: str) -> Mapping[UUID, Truncation]:
    """Return the last truncation of each table that the nodes of a ScyllaDB cluster have truncated, by the table's id.
    `table` is that of these records, `system.truncated`.

    Each node records only its own truncations, with its own time, and the latest time counts. TRUNCATE reaches all
    replicas of a table, in each data center, or fails. So the nodes of the local data center have a record for each
    table that has replicas there. Other tables cannot be read at LOCAL_QUORUM anyway. A node that is down is left out,
    because other nodes have recorded the same truncations. A node that may be up must answer.

    Raise DatabaseUnreachable if all nodes of the local data center are down, or a node that is not known to be down
    does not answer; and an error of the driver if a node refuses the query.
    """
    found: dict[UUID, Truncation] = {}
    hosts = [host for host in local_nodes(session) if host.is_up is not False]
    if not hosts:
        raise DatabaseUnreachable("no node of cassandra.local_datacenter is up")
    query = f"SELECT DISTINCT table_uuid, tounixtimestamp(truncated_at) AS at FROM {table}"
    for host in hosts:
        try:
            rows = list(session.execute(query, host=host))
        except DRIVER_FAULTS as e:
            if not is_without_answer(e):
                raise
            raise DatabaseUnreachable(f"node {host.address} does not answer: {driver_reason(e)}") from None
        for row in rows:
            if row.at is not None:
                latest = max(row.at * 1000, found[row.table_uuid].at if row.table_uuid in found else 0)
                found[row.table_uuid] = Truncation(latest)
    return found
