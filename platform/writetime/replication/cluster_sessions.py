"""Sessions of other clusters, which the tables of a program share: each session has threads and connections."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cassandra.cluster import Session

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError


@contextmanager
def connected(settings: Settings, cluster: str) -> Iterator[Session]:
    """Open a session of one of `[clusters]`, for writes that must not be lost.

    Raises:
        DatabaseUnreachable: it does not answer.
        WritetimeError: the settings do not have it, or its consistency is that of one node.
    """
    own = settings.of_cluster(cluster)
    if own.cassandra.consistency == "LOCAL_ONE":
        raise WritetimeError(
            f"a replication needs consistency LOCAL_QUORUM or more in [clusters.{cluster}]: a node that is lost would "
            "take its writes with it"
        )
    with connect(own) as session:
        yield session


class ClusterSessions:
    """The sessions of one program, each opened when it is first needed. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sessions: dict[str, Session] = {}
        self._open = ExitStack()
        # A cluster that does not answer must not delay the others.
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def of(self, cluster: str) -> Session:
        """Return the session of one of `[clusters]`.

        Raises: as `connected`.
        """
        with self._locks[cluster]:
            if cluster not in self._sessions:
                with ExitStack() as opened:
                    session = opened.enter_context(connected(self._settings, cluster))
                    self._open.push(opened.pop_all())
                self._sessions[cluster] = session
            return self._sessions[cluster]

    def close(self) -> None:
        """Close all of them."""
        self._open.close()
        self._sessions.clear()
