"""Embedded servers in a folder."""

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.settings import write_settings
from writetime import servers
from writetime.clients import database
from writetime.core import config
from writetime.core.config import Settings
from writetime.servers.process import free_port


@contextmanager
def running_servers(
    home: Path,
    cassandra: dict[str, Any] | None = None,
    make_keyspace: Callable[[Settings], None] = lambda _: None,
    *,
    keep: bool = False,
) -> Iterator[Settings]:
    """Start embedded servers in a folder; yield their settings, with the keyspace and its tables in the database.

    Args:
        home: what the servers write to.
        cassandra: settings of a database that runs already, if it is to be used instead of an embedded one.
        make_keyspace: creates the keyspace, where that needs options.
        keep: use the servers that an earlier call left running in the folder, and leave them running.
    """
    file = home / "servers.toml"
    known = keep and file.exists()
    settings = config.load(**tomllib.loads(file.read_text())) if known else _settings(home, cassandra)
    try:
        servers.up(settings)
        if keep:
            write_settings(settings, file)
        make_keyspace(settings)
        database.apply_schema(settings)
        yield settings
    finally:
        if not keep:
            servers.down(settings)


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
        },
        lake={"path": str(home / "lake")},
    )
