"""The database for assets."""

from contextlib import AbstractContextManager

from cassandra.cluster import Session
from pydantic import Field

from writetime.clients import database
from writetime_dagster.resources.base import SAME, SAME_SECRET, WritetimeResource


class DatabaseResource(WritetimeResource):
    """Apache Cassandra or ScyllaDB. A field that is None has the value of the setting in the section `[cassandra]`."""

    section = "cassandra"

    contact_points: list[str] | None = Field(default=None, description=SAME)
    port: int | None = Field(default=None, description=SAME)
    local_datacenter: str | None = Field(default=None, description=SAME)
    username: str | None = Field(default=None, description=SAME)
    password: str | None = Field(default=None, repr=False, description=SAME_SECRET)

    def connect(self) -> AbstractContextManager[Session]:
        """Open a session for a `with` block: token-aware, at the consistency of the settings."""
        return database.connect(self.settings)
