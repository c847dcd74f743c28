"""The replication of one table to another cluster, as a step of `follow` with turns of its own.

So a cluster that is slow, or does not answer, does not delay the view and the row events of the table.
"""

import threading

from writetime.core.config import Settings
from writetime.follow.steps import Step, Stopped
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import LakeTable, is_in_lake, open_table
from writetime.replication.cluster_sessions import ClusterSessions
from writetime.replication.replicated_part import ReplicatedPart
from writetime.replication.replicating import TableReplicator

# An import of SSTables takes seconds of a node's cores, and makes files that it has to compact.
_REST_SECONDS = 10.0
_IMPORT_SECONDS = 1.0


class TableReplication:
    """Replicates a table to a cluster. One thread at a time may run it, and any thread may announce new changes."""

    def __init__(
        self,
        settings: Settings,
        table: FollowedTable,
        cluster: str,
        sessions: ClusterSessions,
        stop: threading.Event,
    ) -> None:
        """Replicate a table. After the `stop`, a running attempt ends before its next request."""
        self.name = f"{table.name} to {cluster}"
        self.step = Step(settings, "replication", table.name, settings.follow.events_seconds)
        self._settings, self._entry, self._cluster, self._sessions = settings, table, cluster, sessions
        self._stop, self._has_news = stop, threading.Event()
        self._opened: tuple[LakeTable, TableReplicator] | None = None

    def begin(self) -> None:
        """Record that the lake has new changes."""
        self._has_news.set()
        self.step.begin()

    def run(self) -> None:
        """Write the changes that the cluster lacks."""
        self._has_news.clear()
        if self.step.attempt(self._replicate) and self._has_news.is_set():
            # They came after it had read the version of the lake.
            self.step.begin()

    def _proceed(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _replicate(self) -> int:
        name = self._entry.name
        try:
            if self._opened is None:
                if not is_in_lake(self._settings, name):
                    return 0
                table, part = open_table(self._settings, name), ReplicatedPart.of_entry(self._entry.entry)
                session = self._sessions.of(self._cluster)
                self._opened = table, TableReplicator(self._settings, session, table, self._cluster, part)
            table, replicator = self._opened
            written = replicator.replicate(table, wait=False, proceed=self._proceed)
        except BaseException:
            # The kept data may be the cause, in the lake or in the cluster.
            self._opened = None
            raise
        if replicator.is_waiting:
            # For nodes on other machines. The turn is for another table meanwhile.
            self.step.rest(_IMPORT_SECONDS)
            raise Stopped
        if replicator.has_carried:
            self.step.rest(_REST_SECONDS)
        return written
