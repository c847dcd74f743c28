"""ZooKeeper for assets."""

from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient

from resources.base import WritetimeResource
from writetime.zookeeper import client_options


class ZooKeeperResource(WritetimeResource):
    """The ensemble of the settings."""

    @contextmanager
    def connect(self) -> Iterator[KazooClient]:
        """Open a client for a `with` block."""
        client = KazooClient(**client_options(self.settings))
        client.start(timeout=15)
        try:
            yield client
        finally:
            client.stop()
            client.close()
