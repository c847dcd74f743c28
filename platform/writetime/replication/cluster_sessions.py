"""Sessions of other clusters, which the tables of a program share: each session has threads and connections."""

import threading
from contextlib import ExitStack

from cassandra.cluster import Session

from writetime.clients.database import connect
from writetime.core.config import Settings


class ClusterSessions:
    """The sessions of one program, each opened when it is first needed. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._open = ExitStack()

    def of(self, cluster: str) -> Session:
        """Return the session of one of `[clusters]`.

        Raises:
            DatabaseUnreachable: it does not answer.
            WritetimeError: the settings do not have it.
        """
        with self._lock:
            if cluster not in self._sessions:
                opened = connect(self._settings.of_cluster(cluster))
                self._sessions[cluster] = self._open.enter_context(opened)
            return self._sessions[cluster]

    def close(self) -> None:
        """Close all of them."""
        self._open.close()
        self._sessions.clear()
