"""The embedded servers of one machine: real Cassandra, Kafka and ZooKeeper on loopback."""

from collections.abc import Callable, Iterator, Sequence

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.server_settings import is_loopback
from writetime.runtime import jars
from writetime.servers.cassandra import CassandraServer
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import EmbeddedServer, ServerFolder
from writetime.servers.zookeeper import ZooKeeperServer


def servers(settings: Settings) -> list[EmbeddedServer]:
    """Return the embedded servers that `embedded.servers` names, at the addresses of the settings, running or not.
    Raises WritetimeError: the address of one is not on this machine, so there is nothing to start.
    """
    for name, setting, host in _addresses(settings):
        if name in settings.embedded.servers and not is_loopback(host):
            raise WritetimeError(
                f"{setting} is {host}, not on this machine: embedded servers listen on 127.0.0.1 only; if {name} is "
                "external, leave it out of embedded.servers"
            )
    return [server(settings) for name, server in _SERVERS.items() if name in settings.embedded.servers]


def left(settings: Settings) -> list[ServerFolder]:
    """Return the servers in `embedded.home` that run although `embedded.servers` no longer names them."""
    found = [ServerFolder(settings.embedded.home / name) for name in _SERVERS if name not in settings.embedded.servers]
    return [server for server in found if server.pid() is not None]


def up(settings: Settings) -> list[tuple[EmbeddedServer, bool]]:
    """Start the servers that are not running, all at once, and wait until all are ready; the flag shows which were
    started. Raises WritetimeError: two of them have the same port, a port is in use, or a server does not start.
    """
    all_servers = servers(settings)
    require_distinct_ports(all_servers)
    # All are checked before the first starts: if one cannot start, none is started.
    needed = [server for server in all_servers if server.must_start()]
    jars.fetch(*(server.name for server in needed))
    launched = [(server, server.launch()) for server in all_servers]
    for server in all_servers:
        server.wait_ready()
    return launched


def down(settings: Settings) -> list[tuple[str, bool]]:
    """Stop all servers in `embedded.home`, also those that the settings no longer name; return their names. The flag
    shows which were running.
    """
    named = {*settings.embedded.servers, *(server.folder.name for server in left(settings))}
    return [(name, ServerFolder(settings.embedded.home / name).stop()) for name in reversed(_SERVERS) if name in named]


def require_distinct_ports(all_servers: Sequence[EmbeddedServer]) -> None:
    """Compare the ports before anything starts: a port is free until its first server listens. Raises WritetimeError:
    two servers have the same port.
    """
    taken: dict[tuple[str, int], str] = {}
    for server in all_servers:
        for setting, port in server.ports.items():
            other = taken.setdefault((server.address, port), setting)
            if other != setting:
                raise WritetimeError(f"{setting} and {other} are both port {port}: set another port for one of them")


_SERVERS: dict[str, Callable[[Settings], EmbeddedServer]] = {
    "zookeeper": ZooKeeperServer,
    "kafka": KafkaServer,
    "cassandra": CassandraServer,
}


def _addresses(settings: Settings) -> Iterator[tuple[str, str, str]]:
    for host in settings.cassandra.contact_points:
        yield "cassandra", "cassandra.contact_points", host
    for name, setting, addresses in [
        ("kafka", "kafka.bootstrap_servers", settings.kafka.bootstrap_servers),
        ("zookeeper", "zookeeper.hosts", settings.zookeeper.hosts),
    ]:
        for address in addresses.split(","):
            yield name, setting, address.strip().rsplit(":", 1)[0]
