"""Landing's reports of tables, and the reasons why a table does not land.

A report goes to the topic of the watermarks, like those of agents. `writetime status`, `writetime verify` and Dagster
read it there, from any machine.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from writetime.clients.kafka import NoTopic, offsets_at
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, reason_of
from writetime.core.instants import instant_text
from writetime.delta.versions import TableVersion
from writetime.lake.horizon import registered_sources
from writetime.lake.table import LakeTable
from writetime.landing.landed_offsets import landed_offsets
from writetime.wire.publishing import Sender
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import LandingReport, SourceMarks, WatermarkTopic, ensure_watermarks_topic, send_report

log = logging.getLogger(__name__)

# Reports of a table with changes come every half a minute.
_FOLLOWED_SECONDS = 120.0


class Reporter:
    """Sends reports. If a report cannot be sent, this is logged, and does not stop anything."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sender: Sender | None = None

    def send(self, table: str, report: LandingReport) -> None:
        """Hand over a report of a table."""
        try:
            if self._sender is None:
                ensure_watermarks_topic(self._settings)
                self._sender = Sender(self._settings, "landing reports cannot be sent")
            send_report(self._sender, table, report)
        except Exception as e:
            log.warning("%s", reason_of(e), exc_info=not isinstance(e, WritetimeError))
            self._sender = None

    def flush(self) -> None:
        """Wait until the broker has all reports, or has not answered for a while."""
        if self._sender is not None:
            try:
                stop = threading.Event()
                stop.set()
                self._sender.flush(stop)
            except Exception as e:
                log.warning("%s", reason_of(e), exc_info=not isinstance(e, WritetimeError))


def followed(reports: Mapping[str, LandingReport]) -> set[str]:
    """Return the tables that `writetime follow` has reported lately."""
    since = time.time() - _FOLLOWED_SECONDS
    # Reports of `writetime land` repeat the last steps.
    return {table for table, report in reports.items() if report.steps and report.steps_at > since}


def stopped(
    settings: Settings, table: LakeTable, opened: Callable[[Settings], WatermarkTopic] = WatermarkTopic
) -> list[str]:
    """Return why the changes of a captured table do not reach the lake within `capture.stale_seconds`: the fault in
    landing's report, messages that wait longer, and sources that have stopped. Return nothing if they reach it, or if
    the table is not captured. `opened` returns the topic of the watermarks, such as one that calls for several tables
    share.
    """
    now = table.changes.find()
    try:
        topic = opened(settings)
        marks = topic.read()
        return [
            *_of_landing(settings, topic.reports.get(table.name)),
            *_of_messages(settings, table.name),
            *_of_sources(settings, table.name, marks, now),
        ]
    except WritetimeError as e:
        if now is None or not registered_sources(now):
            return []
        return [f"the reports of the table's capture and landing cannot be read: {e}"]


def held(settings: Settings, table: LakeTable) -> list[str]:
    """Return why the agents of a captured table hold its watermark: writes may be missing in the lake."""
    now = table.changes.find()
    if now is None or not registered_sources(now):
        return []
    try:
        marks = WatermarkTopic(settings).read()
    except WritetimeError as e:
        return [f"the reports of its agents cannot be read: {e}"]
    return [
        f"source {source}: {reason}"
        for source, found in sorted(marks.items())
        if not found.retired and (reason := found.status.get("held", {}).get(table.name))
    ]


def _of_landing(settings: Settings, report: LandingReport | None) -> Iterator[str]:
    if report is None or report.fault is None:
        return
    if report.status == "landing":
        yield f"the watermarks of the table do not advance: {report.fault}"
    elif report.status == "set aside" or report.since < time.time() - settings.capture.stale_seconds:
        since = instant_text(round(report.since * 1e6))
        yield f"landing has failed since {since}, the table is {report.status}: {report.fault}"


def _of_messages(settings: Settings, table: str) -> Iterator[str]:
    topic, seconds = changes_topic(table), settings.capture.stale_seconds
    try:
        landed = landed_offsets(settings, table)
    except NoTopic:
        return
    old = offsets_at(settings, topic, time.time() - seconds)
    waiting = sum(max(old[p] - landed[p], 0) for p in old)
    if waiting:
        late = pluralize(waiting, "message")
        yield f"{late} of {topic} not landed for more than {seconds:.0f} s: run `writetime land`"


def _of_sources(
    settings: Settings, table: str, marks: Mapping[str, SourceMarks], now: TableVersion | None
) -> Iterator[str]:
    stale = time.time() - settings.capture.stale_seconds
    registered = registered_sources(now) if now else set()
    for source in sorted(registered | {s for s, m in marks.items() if table in m.tables}):
        found = marks.get(source, SourceMarks())
        if found.retired:
            continue
        until = found.tables[table].until if table in found.tables else None
        fault, at = _fault(found, table), found.status.get("at", 0.0)
        silent = at < stale
        # A table whose snapshot is being published has no watermark: that alone is not a fault. A fault that holds the
        # table itself stays until an operator closes the gap.
        is_held = bool(found.status.get("held", {}).get(table))
        if until is None or is_held or (until / 1e6 < stale if until else silent or fault):
            where = f"up to {instant_text(until)}" if until else "no longer" if until is None else "not yet"
            why = fault or (
                f"its agent has not reported since {instant_text(round(at * 1e6))}" if silent else "it is behind"
            )
            yield f"source {source} is published {where}: {why}"


def _fault(marks: SourceMarks, table: str) -> str | None:
    """Return the fault in an agent's report that holds a table back."""
    status = marks.status
    if status.get("snapshots", {}).get(table, {}).get("status") == "failed":
        return "its snapshot failed; the agent's log has the reason"
    if "logs" in status:
        return status["logs"].get(table, {}).get("fault") or None
    return status.get("held", {}).get(table) or status.get("held_by") or None
