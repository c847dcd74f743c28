"""`writetime follow`: one program that runs the steps of many tables, until it is stopped.

A few requests to Kafka find the new messages of all tables. Each table with new messages gets a turn on a thread, so a
table with much work, or one that fails, does not delay the others. Replications have other threads, because each may
wait for its cluster, and so have registrations, which may wait for their catalog. A table without new messages costs
nothing.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, reason_of
from writetime.core.outages import is_outage
from writetime.files.cache import Cache
from writetime.files.merging import Runner
from writetime.follow.metrics import FollowMetrics, serve_metrics
from writetime.follow.pipeline import TablePipeline
from writetime.follow.registration import TableRegistration
from writetime.follow.replication import TableReplication
from writetime.follow.shares import TableShares, shares
from writetime.follow.turns import Turns, turns
from writetime.lake.followed_tables import FollowedTable, read_entries
from writetime.landing.following import LandedTables, OtherCluster, TableLanding, ends_of
from writetime.replication.cluster_sessions import ClusterSessions
from writetime.wire.publishing import SCHEMAS_TOPIC
from writetime.wire.watermarks import WATERMARKS_TOPIC, Sources

log = logging.getLogger(__name__)

# The least pause between two checks for new messages, per table, so that checking hundreds of tables takes a small
# share of a core. It does not depend on the duration of a check, because on a busy machine this would delay the next
# one.
_REST_SECONDS_PER_TABLE = 0.003
_LONGEST_REST_SECONDS = 1.0


class Follower:
    """Follows tables, all captured ones or those that are named."""

    def __init__(self, settings: Settings, names: Sequence[str] = (), *, accept_gap: bool = False) -> None:
        self.tables: dict[str, TablePipeline] = {}
        # The tables that another program has taken over, until they are closed.
        self._left: dict[str, TablePipeline] = {}
        self._settings = settings
        self._landings = LandedTables(settings, names, accept_gap=accept_gap)
        self._entries = {table.name: table for table in read_entries(settings)[0]}
        self._sessions = ClusterSessions(settings)
        self._in_spark: Runner | None = None
        self._stop = threading.Event()
        self._fault: str | None = None

    def run(self, stop: threading.Event) -> None:
        """Follow the tables until the stop is requested, including those that are captured later.

        Raises:
            NoZooKeeper: ZooKeeper does not answer at the start, and is needed to share the tables.
            OtherCluster: Kafka is no longer the cluster that it was at the start.
            WritetimeError: the port of the metrics cannot be used.
        """
        self._stop = stop
        cached = Cache.of(self._settings).size
        serve_metrics(self._settings, FollowMetrics(lambda: list(self.tables.values()), self._skipped, cached))
        with (
            shares(self._settings) as own,
            _in_spark(self._settings) as self._in_spark,
            turns() as given,
            turns() as of_replications,
            turns() as of_catalogs,
        ):
            while not stop.is_set():
                begin = time.monotonic()
                own.look()
                self.look(given, of_replications, of_catalogs, own)
                rest = min(_REST_SECONDS_PER_TABLE * len(self.tables), _LONGEST_REST_SECONDS)
                stop.wait(max(begin + self._settings.follow.events_seconds - time.monotonic(), rest))
        for table in (*self.tables.values(), *self._left.values()):
            table.close()
        self._sessions.close()
        self._landings.reporter.flush()

    def look(self, given: Turns, of_replications: Turns, of_catalogs: Turns, own: TableShares) -> None:
        """Queue each table of this program that has work and is not at work for a turn. Do the same with replications
        and registrations, which may wait for others. A few requests cover all tables.
        """
        try:
            sources, ends = self._landings.ask()
        except OtherCluster:
            raise
        except Exception as e:
            self._failed(e)
            return
        if self._fault is not None:
            self._fault = None
            log.info("Kafka answers again")
        found = {landing.name: landing for landing in self._landings.wanted(ends)}
        mine = {name: landing for name, landing in found.items() if own.has(name)}
        others = found.keys() - mine.keys()
        self._left |= {name: table for name, table in self.tables.items() if name in others}
        for name in mine:
            self._left.pop(name, None)
        self.tables = {name: self.tables.get(name) or self._pipeline(landing) for name, landing in mine.items()}
        work = {name: partial(_run, table, ends_of(ends, name), sources) for name, table in self.tables.items()}
        closing = {name: partial(self._close, name) for name in list(self._left)}
        given.offer(
            work | closing,
            lambda name: name not in work or self.tables[name].is_due(ends_of(ends, name), sources),
        )
        _offer(of_replications, [table.replication for table in self.tables.values()])
        _offer(of_catalogs, [table.registration for table in self.tables.values()])

    def _pipeline(self, landing: TableLanding) -> TablePipeline:
        entry = self._entries.get(landing.name) or FollowedTable(landing.name)
        cluster, replication = entry.entry.replicate_to, None
        if cluster is not None:
            replication = TableReplication(self._settings, entry, cluster, self._sessions, self._stop)
        return TablePipeline(self._settings, landing, entry, self._in_spark, self._stop, replication=replication)

    def _close(self, name: str) -> None:
        """Close a table that another program has taken over, so that it never publishes from an old position."""
        table = self._left.pop(name, None)
        if table is not None:
            table.close()

    def _skipped(self) -> dict[str, int]:
        topics = self._landings.topics
        if topics is None:
            return {}
        return {SCHEMAS_TOPIC: topics.schemas.skipped, WATERMARKS_TOPIC: topics.watermarks.skipped}

    def _failed(self, error: Exception) -> None:
        """Report an error of a service that all tables need, such as Kafka, once."""
        fault = reason_of(error)
        if fault != self._fault:
            self._fault = fault
            unknown = not isinstance(error, WritetimeError) and not is_outage(error)
            log.error("no table can be followed: %s; retrying", fault, exc_info=unknown)


@contextmanager
def _in_spark(settings: Settings) -> Iterator[Runner | None]:
    """Open a Spark session for a `with` block, if large batches need it, and yield the runner of their tasks."""
    if settings.follow.spark_changes is None:
        yield None
        return
    # Only this function needs Spark.
    from writetime.clients.spark import spark_session
    from writetime.lake.spark_tasks import in_spark

    with spark_session(settings) as session:
        yield in_spark(session)


def _offer(given: Turns, parts: Iterable[TableReplication | TableRegistration | None]) -> None:
    """Queue the parts of tables that have work for turns of their own."""
    found = {each.name: each for each in parts if each}
    given.offer({name: each.run for name, each in found.items()}, lambda name: found[name].step.is_due)


def _run(table: TablePipeline, ends: Mapping[int, int] | Exception, sources: Sources) -> None:
    """Run the steps of a table, and log the number of landed changes."""
    try:
        landed = table.run(ends, sources)
    except Exception as e:
        # Each step catches its own errors.
        log.exception("%s: %s", table.name, reason_of(e))
        return
    if landed:
        log.info("%s of %s landed", pluralize(landed, "change"), table.name)
