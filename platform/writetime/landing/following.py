"""Lands many tables, so that none of them stops another.

An exception is caught at the table that raised it. Landing waits for a broker or a disk that is not available. An error
that an operator must correct, and an unknown error that three more attempts repeat, sets the table aside. It is then
retried each minute, because the cause may be gone, and the others continue. Changes of a table count as landed only
after their commit.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from writetime.clients.kafka import TopicEnds, ends_of_topics
from writetime.clients.topic_options import Keeps, lossy_faults
from writetime.core.config import Settings
from writetime.core.errors import MissingTable, WritetimeError, reason_of
from writetime.core.outages import is_outage
from writetime.files.merging import Runner
from writetime.landing.landed_offsets import landed_offsets
from writetime.landing.landing import Landing
from writetime.landing.reports import Reporter
from writetime.landing.step_counts import StepCounts
from writetime.landing.topics import Topics, no_topic
from writetime.wire.topic_names import changes_topic, table_of_topic
from writetime.wire.watermarks import LandingReport, Sources, StepReport

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""The number of retries after an unknown error."""
PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
SET_ASIDE_SECONDS = 60.0
# How often landing reports on a table that has changes.
REPORT_SECONDS = 30.0
_SHOWN = 2000


class TableLanding(StepCounts):
    """The landing of one table, and the boundary of its errors: it lands, or reports why it does not."""

    def __init__(
        self, settings: Settings, table: str, topics: Topics, reporter: Reporter, *, accept_gap: bool = False
    ) -> None:
        """Land a table; `accept_gap` is as in `Landing`."""
        super().__init__()
        self.name = table
        self._accept_gap = accept_gap
        # Each process counts its own attempts.
        self.report = replace(topics.watermarks.reports.get(table) or LandingReport(0.0), attempts=0)
        self._settings = settings
        self._topics = topics
        self._reporter = reporter
        self._landing: Landing | None = None
        if self.report.status != "landing":
            self.behind_since = self.report.since
        # The last known offsets: of the topic's ends, and those up to which the lake has the topic.
        self._ends: Mapping[int, int] = {}
        self._landed: Mapping[int, int] = {}
        self._lacked_ends = False
        self._next_try = 0.0
        self._next_report = 0.0

    def is_due(self, ends: Mapping[int, int] | Exception) -> bool:
        """Return whether the table must be tried now: at once if the ends of its topic have become known."""
        return time.monotonic() >= self._next_try or (self._lacked_ends and not isinstance(ends, Exception))

    def is_current(self, ends: Mapping[int, int] | Exception, sources: Sources) -> bool:
        """Return whether there is nothing new to land, by the offsets of its last call. If not, it is now behind."""
        # It may query the lake or Kafka. Landing meets their errors, too, and reports them.
        with suppress(Exception):
            if self._landing and not isinstance(ends, Exception) and self._landing.is_current(ends, sources):
                # The ends may have been unknown for a moment.
                self._lacked_ends, self._next_try, self.behind_since = False, 0.0, 0.0
                return True
        self.begin()
        return False

    def waiting(self, ends: Mapping[int, int] | Exception) -> int:
        """Return the number of changes that wait in the topic, by the last offsets that are known."""
        if not isinstance(ends, Exception):
            self._ends = ends
        self._remember()
        return sum(max(end - self._landed.get(p, end), 0) for p, end in self._ends.items())

    def land(
        self, ends: Mapping[int, int] | Exception, sources: Sources, run: Runner = map, *, one_batch: bool = False
    ) -> int | Exception:
        """Land the messages of the topic once, as `Landing.land` does; return the number of changes, or the error. The
        ends may be the error why they are not known.
        """
        lacked, self._lacked_ends = self._lacked_ends, isinstance(ends, Exception)
        self.begin()
        if isinstance(ends, Exception) and is_outage(ends) and not lacked:
            # A new topic has no leader yet, and others get another one. This is a fault only if it lasts.
            self._next_try = time.monotonic() + PAUSE_SECONDS
            log.debug("%s: %s", self.name, ends)
            return ends
        try:
            if isinstance(ends, Exception):
                raise ends
            if self._landing is None:
                self._landing = Landing(
                    self._settings, self.name, self._topics, self.report.place, accept_gap=self._accept_gap
                )
            with self.measured():
                count = self._landing.land(ends, sources, run, one_batch=one_batch)
        except Exception as e:
            self._failed(e)
            return e
        self.done(count, more=self.waiting(ends) > 0)
        self._succeeded()
        return count

    def report_steps(self, steps: Mapping[str, StepReport]) -> None:
        """Report the steps that follow landing: at once if one fails or works again, otherwise at intervals."""
        was = self.report.steps
        changed = {name: step.fault for name, step in was.items()} != {name: step.fault for name, step in steps.items()}
        # A report of landing, which may be sent instead, has them too.
        self.report = replace(self.report, steps=steps, steps_at=time.time())
        if self.report.at and (changed or time.monotonic() >= self._next_report):
            self._send(replace(self.report, at=time.time()))

    def _remember(self) -> None:
        """Keep the offsets that landing has read. After a failure, a new landing has none."""
        if self._landing is not None:
            self._landed = self._landing.landed or self._landed

    def _succeeded(self) -> None:
        self._next_try = 0.0
        assert self._landing is not None
        was, held_by = self.report, self._landing.held_by
        if was.fault is not None and was.status != "landing":
            log.info("%s lands again", self.name)
        if held_by is not None and held_by != was.fault:
            log.warning("the watermarks of %s do not advance: %s", self.name, held_by)
        is_due = was.place != self._landing.place and time.monotonic() >= self._next_report
        if was.at == 0.0 or was.fault != held_by or is_due:
            self._send(_success(was, self._landing, self.rows))

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        was = self.report
        report = failure(was, error, self.rows)
        self._remember()
        if not self._landed and not is_outage(error):
            # Of a table that has not landed since the start, only Kafka and the lake know them.
            with suppress(Exception):
                self._landed = landed_offsets(self._settings, self.name)
        # The kept data may be the cause.
        self._landing = None
        self._next_try = time.monotonic() + _pause(report)
        if (was.fault, was.status) != (report.fault, report.status):
            what = "it is set aside, and retried each minute" if report.status == "set aside" else "retrying"
            log.error("%s cannot be landed: %s; %s", self.name, report.fault, what, exc_info=_unknown(error))
            self._send(report)
        elif time.monotonic() >= self._next_report:
            self._send(report)
        self.report = report

    def _send(self, report: LandingReport) -> None:
        self.report = report
        self._next_report = time.monotonic() + REPORT_SECONDS
        self._reporter.send(self.name, report)


class OtherCluster(WritetimeError):
    """Kafka is no longer the cluster that this process has read."""


class LandedTables:
    """The landings of all captured tables or of named ones, and the data that is read once for all of them."""

    def __init__(self, settings: Settings, names: Sequence[str] = (), *, accept_gap: bool = False) -> None:
        self.reporter = Reporter(settings)
        self.topics: Topics | None = None
        """The topics that all tables need, once they have been read."""
        self._settings = settings
        self._names = names
        self._accept_gap = accept_gap
        self._tables: dict[str, TableLanding] = {}
        self._cluster: str | None = None

    def ask(self) -> tuple[Sources, TopicEnds]:
        """Read the data of all tables: first the watermarks, then the ends, then the schemas; see `Landing`.

        Raises:
            OtherCluster: Kafka is another cluster than at the last call, so nothing that this process has read counts.
            WritetimeError: Kafka does not answer.
        """
        if self.topics is None:
            self.topics = Topics(self._settings)
        sources = self.topics.watermarks.read()
        ends = ends_of_topics(self._settings, lambda topic: table_of_topic(topic) is not None)
        if None not in (self._cluster, ends.cluster) and self._cluster != ends.cluster:
            raise OtherCluster(
                f"Kafka has the cluster id {ends.cluster}, and had {self._cluster}: its data was lost, or this is "
                'another cluster; start the agents with capture.snapshot = "always", and this program again'
            )
        self._cluster = ends.cluster or self._cluster
        self.topics.schemas.read_on()
        return sources, ends

    def wanted(self, ends: TopicEnds) -> list[TableLanding]:
        """Return the tables to land, including those that are captured later."""
        assert self.topics is not None
        there = sorted({str(table_of_topic(topic)) for topic in (*ends.ends, *ends.faults)})
        names = self._names or there
        new = [name for name in names if name not in self._tables]
        for name in new:
            self._tables[name] = TableLanding(
                self._settings, name, self.topics, self.reporter, accept_gap=self._accept_gap
            )
        # Messages are read nevertheless, before Kafka deletes more. A missing message sets its table aside.
        with suppress(WritetimeError):
            for fault in lossy_faults(self._settings, {changes_topic(name): Keeps.UNREAD for name in new}, log):
                log.error("%s", fault)
        if not self._names:
            # A table whose topic was deleted, such as by `writetime forget`, no longer exists.
            self._tables = {name: table for name, table in self._tables.items() if name in set(there)}
        return [self._tables[name] for name in names]

    def land_once(self) -> Iterator[tuple[str, int | Exception]]:
        """Land the messages of each table; yield each with the number of changes, or the error. An error that may pass,
        or is unknown, is retried three times.
        """
        sources, ends = self.ask()
        for table in self.wanted(ends):
            outcome: int | Exception = 0
            for attempt in range(ATTEMPTS + 1):
                if attempt:
                    time.sleep(PAUSE_SECONDS)
                    if isinstance(ends_of(ends, table.name), Exception):
                        # The topic's partitions may have had no leader at that moment.
                        sources, ends = self.ask()
                outcome = table.land(ends_of(ends, table.name), sources)
                if isinstance(outcome, int) or (isinstance(outcome, WritetimeError) and not is_outage(outcome)):
                    break
            yield table.name, outcome
        self.reporter.flush()


def ends_of(ends: TopicEnds, table: str) -> Mapping[int, int] | Exception:
    """Return the end offsets of a table's topic, or the error why they are not known."""
    topic = changes_topic(table)
    return ends.ends.get(topic) or ends.faults.get(topic) or no_topic(table)


def failure(was: LandingReport, error: Exception, changes: int) -> LandingReport:
    """Return the report of a table that failed, after its earlier report."""
    attempts = was.attempts + 1 if was.fault is not None else 1
    # Another topic of the name would have other messages at the offsets of this place.
    place = None if isinstance(error, MissingTable) else was.place
    lasting = not is_outage(error) and (isinstance(error, WritetimeError) or attempts > ATTEMPTS)
    return replace(
        was,
        at=time.time(),
        status="set aside" if lasting else "waiting",
        changes=changes,
        fault=reason_of(error)[:_SHOWN],
        since=time.time() if was.fault is None else was.since,
        attempts=attempts,
        place=place,
    )


def _success(was: LandingReport, landing: Landing, changes: int) -> LandingReport:
    """Return the report of a table that landed, after its earlier report."""
    fault = landing.held_by
    since = 0.0 if fault is None else was.since if fault == was.fault else time.time()
    report = LandingReport(time.time(), changes=changes, fault=fault, since=since, place=landing.place)
    return replace(report, steps=was.steps, steps_at=was.steps_at)


@contextmanager
def reported(settings: Settings, landing: Landing) -> Iterator[None]:
    """Report the result of the landing of one table, which the `with` block does once."""
    topics, reporter = landing.topics, Reporter(settings)
    topics.watermarks.read()
    was = topics.watermarks.reports.get(landing.name, LandingReport(0.0))
    try:
        yield
    except Exception as e:
        reporter.send(landing.name, failure(was, e, 0))
        raise
    else:
        reporter.send(landing.name, _success(was, landing, landing.offsets_landed))
    finally:
        reporter.flush()


def _pause(report: LandingReport) -> float:
    """Return the seconds until the next attempt of a table that failed. An outage may last, and each attempt may have
    to wait for an answer.
    """
    if report.status == "set aside":
        return SET_ASIDE_SECONDS
    return min(PAUSE_SECONDS * 2 ** min(report.attempts - 1, 10), _LONGEST_PAUSE_SECONDS)


def _unknown(error: Exception) -> Exception | None:
    """Return an error whose traceback is useful."""
    return None if isinstance(error, WritetimeError) or is_outage(error) else error
