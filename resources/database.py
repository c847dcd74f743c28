"""The database for assets."""

from contextlib import AbstractContextManager
from typing import Any

from cassandra.cluster import Session
from pydantic import Field

from writetime.clients import database
from writetime_dagster.resources.base import WritetimeResource


class DatabaseResource(WritetimeResource):
    """Apache Cassandra or ScyllaDB. A field that is None has the value of the setting in the section `[cassandra]`."""

    contact_points: list[str] | None = Field(default=None, description="Default: the setting of this name.")
    port: int | None = Field(default=None, description="Default: the setting of this name.")
    local_datacenter: str | None = Field(default=None, description="Default: the setting of this name.")
    username: str | None = Field(default=None, description="Default: the setting of this name.")
    password: str | None = Field(
        default=None, repr=False, description="Default: the setting of this name. Name a variable: `EnvVar`."
    )

    def overrides(self) -> dict[str, dict[str, Any]]:
        """Return the values that the fields name."""
        names = ("contact_points", "port", "local_datacenter", "username", "password")
        return {"cassandra": {name: getattr(self, name) for name in names}}

    def connect(self) -> AbstractContextManager[Session]:
        """Open a session for a `with` block: token-aware, at the consistency of the settings."""
        return database.connect(self.settings)
