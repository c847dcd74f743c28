"""ZooKeeper for assets."""

from contextlib import AbstractContextManager

from kazoo.client import KazooClient
from pydantic import Field

from writetime.clients.zookeeper import connect
from writetime_dagster.resources.base import SAME, SAME_SECRET, WritetimeResource

_SECONDS = 15


class ZooKeeperResource(WritetimeResource):
    """The ensemble, for assets of your own. A field that is None has the value of the setting in `[zookeeper]`."""

    section = "zookeeper"

    hosts: str | None = Field(default=None, description=SAME)
    username: str | None = Field(default=None, description=SAME)
    password: str | None = Field(default=None, repr=False, description=SAME_SECRET)

    def connect(self) -> AbstractContextManager[KazooClient]:
        """Open a client for a `with` block.

        Raises:
            NoZooKeeper: no server accepts the client; the message has the reason.
        """
        return connect(self.settings, _SECONDS)
