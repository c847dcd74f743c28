"""ZooKeeper for assets."""

from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient

from writetime.clients.zookeeper import connect
from writetime_dagster.resources.base import WritetimeResource

_SECONDS = 15


class ZooKeeperResource(WritetimeResource):
    """The ensemble of the settings."""

    @contextmanager
    def connect(self) -> Iterator[KazooClient]:
        """Open a client for a `with` block.

        Raises:
            NoZooKeeper: no server accepts the client; the message has the reason.
        """
        with connect(self.settings, _SECONDS) as client:
            yield client
