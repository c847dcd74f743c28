"""A node of ScyllaDB: its data folders, and its REST interface, which loads SSTables as `nodetool refresh` does.

Sources (ScyllaDB 2026.1): `db/virtual_tables.cc` for `system.config`, whose values are JSON; `main.cc` for the address
of the interface; `refresh_operation` in `tools/scylla-nodetool.cc`, `api/storage_service.cc` and `sstables_loader.cc`
for the call.
"""

import http.client
import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

from cassandra.cluster import Session

from writetime.clients.database import node_of
from writetime.core.errors import Transient, WritetimeError, plain_text
from writetime.core.waiting import wait_until

_NAMES = ("data_file_directories", "api_address", "api_port", "rpc_address")
# Addresses that a server listens at for any of its machine.
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_BUSY = "Already loading SSTables"
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class ScyllaNode:
    """The data folders of a node, and the address of its REST interface, as host:port."""

    data_folders: Sequence[str]
    api: str


def is_scylla(session: Session) -> bool:
    """Return whether the database is ScyllaDB."""
    query = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'system_schema' AND table_name = %s"
    return session.execute(query, ["scylla_tables"]).one() is not None


def scylla_node(session: Session, address: str) -> ScyllaNode:
    """Return the node at an address. Raises an error of the driver: the node does not answer, or a right is missing."""
    query = f"SELECT name, value FROM system.config WHERE name IN ({', '.join(['%s'] * len(_NAMES))})"
    rows = session.execute(query, _NAMES, host=node_of(session, address))
    found = {row.name: json.loads(row.value) for row in rows}
    host: str = found["api_address"] or found["rpc_address"]
    host = _ANY.get(host, host)
    return ScyllaNode(found["data_file_directories"], f"{f'[{host}]' if ':' in host else host}:{found['api_port']}")


def upload_folder(node: ScyllaNode, table: str, table_id: str) -> Path | None:
    """Return the folder that the node loads SSTables of `keyspace.table` from; None if it is not on this machine."""
    keyspace, _, name = table.partition(".")
    folders = [Path(data, keyspace, f"{name}-{table_id.replace('-', '')}", "upload") for data in node.data_folders]
    return next(filter(Path.is_dir, folders), None)


def load_and_stream(node: ScyllaNode, table: str, seconds: float) -> None:
    """Let a node read the SSTables in the upload folder of `keyspace.table`, send their rows to all replicas, and
    delete them. If it loads others, wait for that. Raises WritetimeError: it fails, or has not ended in so many
    seconds.
    """
    if not wait_until(lambda: _is_loaded(node, table, seconds), seconds, _PAUSE_SECONDS):
        raise Transient(f"the node at {node.api} still loads other SSTables: run this again later")


def _is_loaded(node: ScyllaNode, table: str, seconds: float) -> bool:
    """Call the node once; return whether it loaded the SSTables. It refuses while it loads others."""
    keyspace, _, name = table.partition(".")
    options = urlencode({"cf": name, "load_and_stream": "true"})
    url = f"http://{node.api}/storage_service/sstables/{quote(keyspace)}?{options}"
    # Not by way of a proxy of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(urllib.request.Request(url, method="POST"), timeout=seconds).close()
    except HTTPError as e:
        reason = e.read().decode(errors="replace")
        if _BUSY in reason:
            return False
        raise WritetimeError(
            f"the node at {node.api} does not load the SSTables of {table}: {reason}; see its log"
        ) from None
    except (OSError, http.client.HTTPException) as e:
        raise Transient(
            f"the REST interface of the node does not answer at {node.api} ({plain_text(e)}): run this where it does "
            "(api_address in scylla.yaml)"
        ) from None
    return True
