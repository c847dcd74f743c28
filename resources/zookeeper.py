"""ZooKeeper for assets."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient
from pydantic import Field

from writetime.clients.zookeeper import connect
from writetime_dagster.resources.base import WritetimeResource

_SECONDS = 15


class ZooKeeperResource(WritetimeResource):
    """The ensemble, for assets of your own. A field that is None has the value of the setting in `[zookeeper]`."""

    hosts: str | None = Field(default=None, description="Default: the setting of this name.")
    username: str | None = Field(default=None, description="Default: the setting of this name.")
    password: str | None = Field(
        default=None, repr=False, description="Default: the setting of this name. Name a variable: `EnvVar`."
    )

    def overrides(self) -> dict[str, dict[str, Any]]:
        """Return the values that the fields name."""
        return {"zookeeper": {"hosts": self.hosts, "username": self.username, "password": self.password}}

    @contextmanager
    def connect(self) -> Iterator[KazooClient]:
        """Open a client for a `with` block.

        Raises:
            NoZooKeeper: no server accepts the client; the message has the reason.
        """
        with connect(self.settings, _SECONDS) as client:
            yield client
