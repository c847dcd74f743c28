"""Embedded servers in a folder."""

import os
import signal
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.settings import write_settings
from writetime import servers
from writetime.clients import database
from writetime.clients.node_snapshots import local_node
from writetime.core import config
from writetime.core.config import Settings
from writetime.runtime.nodetool import nodetool
from writetime.servers.cassandra import CassandraServer
from writetime.servers.process import EmbeddedServer, ServerFolder, free_port

Server = TypeVar("Server", bound=EmbeddedServer)

START_SECONDS = 600.0
"""How long a server may take to start. No test measures this, and other programs may use the processors."""


def flushes_schemas(flushes: bool) -> str:
    """Return the Java option by which Cassandra flushes its tables of schemas at each change, or does not. A node that
    does not loses changes when it is killed: it reads its schemas before it replays its commit log.
    """
    return f"-Dcassandra.test.flush_local_schema_changes={str(flushes).lower()}"


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start a server, and stop it at the end, also if its start fails."""
    try:
        server.start()
        yield server
    finally:
        server.stop()


def kill(server: EmbeddedServer, settings: Settings) -> None:
    """Kill a server of settings. A database keeps the schemas that it has."""
    if isinstance(server, CassandraServer):
        with database.connect(settings) as session:
            _, jmx_port = local_node(session)
        nodetool(jmx_port, "flush", "system_schema")
    server.stop(signal.SIGKILL)


@contextmanager
def frozen(server: ServerFolder) -> Iterator[None]:
    """Stop a server for a `with` block, so that it answers nothing, and does not close its connections."""
    pid = server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def server_addresses(home: Path, cassandra: dict[str, Any] | None = None, *, keep: bool = False) -> Iterator[Settings]:
    """Yield settings of embedded servers in a folder, of which none is started; at the end those that run are stopped.

    Args:
        home: what the servers write to.
        cassandra: settings of a database that runs already, if it is to be used instead of an embedded one.
        keep: use the addresses of an earlier call, and leave the servers running.
    """
    file = home / "servers.toml"
    known = keep and file.exists()
    settings = config.load(**tomllib.loads(file.read_text())) if known else _settings(home, cassandra)
    if keep:
        write_settings(settings, file)
    try:
        yield settings
    finally:
        if not keep:
            servers.down(settings)


def start(settings: Settings, *names: str) -> None:
    """Start some of the embedded servers of settings, all at once, if they do not run."""
    named = [name for name in settings.embedded.servers if name in names]
    servers.up(settings.model_copy(update={"embedded": settings.embedded.model_copy(update={"servers": named})}))


@contextmanager
def running_servers(home: Path) -> Iterator[Settings]:
    """Start embedded servers in a folder; yield their settings, with the keyspace and its tables in the database."""
    with server_addresses(home) as settings:
        servers.up(settings)
        database.apply_schema(settings)
        yield settings


def _settings(home: Path, cassandra: dict[str, Any] | None) -> Settings:
    return config.load(
        cassandra=cassandra or {"port": free_port()},
        kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"},
        zookeeper={"hosts": f"127.0.0.1:{free_port()}"},
        embedded={
            "servers": ["zookeeper", "kafka"] if cassandra else ["zookeeper", "kafka", "cassandra"],
            "home": home,
            "cassandra_storage_port": free_port(),
            "kafka_controller_port": free_port(),
            # Each process of the tests has its own.
            "cassandra_heap_mb": 512,
            "kafka_heap_mb": 256,
            "start_timeout_seconds": START_SECONDS,
        },
        lake={"path": str(home / "lake")},
    )
