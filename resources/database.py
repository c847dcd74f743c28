"""The database for assets."""

from contextlib import AbstractContextManager

from cassandra.cluster import Session

from writetime.clients import database
from writetime_dagster.resources.base import WritetimeResource


class DatabaseResource(WritetimeResource):
    """Apache Cassandra or ScyllaDB; the settings' contact point is the only difference."""

    def connect(self) -> AbstractContextManager[Session]:
        """Open a session for a `with` block: token-aware, at the consistency of the settings."""
        return database.connect(self.settings)
