"""Writes the demo's `writetime.toml` if it is missing: for the embedded Cassandra, or for a ScyllaDB.

python -m demo.settings [HOST:PORT]
"""

import os
import sys
from pathlib import Path

import tomlkit
from cassandra.auth import AuthProvider
from cassandra.cluster import Cluster, NoHostAvailable

from writetime.core import config
from writetime.core.errors import WritetimeError

LIVE_TABLE = "plane_positions"
"""The table of the last part of the demo."""
SHIPPED = Path(__file__).with_name("writetime.toml")
_COMMENT = "# The ScyllaDB of `make demo SCYLLA=...`: Kafka and ZooKeeper start here, and CDC logs are read."


def ensure_settings(path: Path, scylla: str | None) -> None:
    """Write the settings of the demo unless the file exists.

    Args:
        path: the path of the file.
        scylla: the address of a ScyllaDB node as HOST:PORT; None for the embedded Cassandra.

    Raises:
        WritetimeError: ScyllaDB does not answer, or the file exists and names another database.
    """
    if path.exists():
        found = config.load().cassandra
        if scylla is not None and address_of(scylla) not in [(point, found.port) for point in found.contact_points]:
            raise WritetimeError(
                f"{path} names the database {', '.join(found.contact_points)} port {found.port}, not {scylla}; the "
                "demo keeps one database per folder: run it in another clone, or delete this file and .writetime"
            )
        return
    text = SHIPPED.read_text()
    path.write_text(text if scylla is None else f"{text}\n{_COMMENT}\n{tomlkit.dumps(_of_scylla(text, scylla))}")


def _of_scylla(shipped: str, scylla: str) -> dict[str, object]:
    host, port = address_of(scylla)
    datacenter, nodes = datacenter_of(host, port)
    entries = tomlkit.parse(shipped).unwrap()["tables"]
    tables = [f"{keyspace}.{name}" for keyspace in entries for name in (*entries[keyspace], LIVE_TABLE)]
    return {
        "cassandra": {
            "contact_points": [host],
            "port": port,
            "local_datacenter": datacenter,
            "replication": {"class": "NetworkTopologyStrategy", datacenter: min(nodes, 3)},
        },
        "embedded": {"servers": ["zookeeper", "kafka"]},
        "capture": {
            "source": "scylla-cdc",
            "tables": tables,
            # The tables must be captured before the first write to them.
            "snapshot": "schema-only",
        },
        "scylla_cdc": {"window_seconds": 1, "confidence_seconds": 10},
    }


def number_of(variable: str, default: int) -> int:
    """Return the number in an environment variable.

    Raises:
        WritetimeError: it is not a positive whole number.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) == 0:
        raise WritetimeError(f"{variable}={text} is not a positive whole number, such as {default}")
    return int(text)


def address_of(text: str) -> tuple[str, int]:
    """Return the host and the port of a node's address.

    Raises:
        WritetimeError: the text is not an address.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise WritetimeError(f"SCYLLA={text} is not an address: name a node as HOST:PORT, such as 127.0.0.1:9042")
    return host, int(port)


def datacenter_of(host: str, port: int, login: AuthProvider | None = None) -> tuple[str, int]:
    """Return the data center of a node, and the number of its nodes. `login` is for a database that asks for one.

    Raises:
        WritetimeError: no database answers.
    """
    cluster = Cluster([host], port=port, auth_provider=login, connect_timeout=10)
    try:
        session = cluster.connect()
        local = session.execute("SELECT data_center FROM system.local").one()
        assert local is not None
        peers = session.execute("SELECT data_center FROM system.peers").all()
        return local.data_center, 1 + sum(peer.data_center == local.data_center for peer in peers)
    except NoHostAvailable as e:
        raise WritetimeError(f"no ScyllaDB answers at {host}:{port}: {e}") from None
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    try:
        ensure_settings(config.config_path(), sys.argv[1] if len(sys.argv) > 1 else None)
    except WritetimeError as e:
        sys.exit(f"Error: {e}")
