"""The progress of each source's capture and of each table's landing: the compacted topic `writetime.watermarks`.

A source is a node, by its host id, or the CDC log of a ScyllaDB table, by the log's name; it has one message. An agent
writes there the time up to which all writes are published, once the broker has acknowledged them. So a reader that
reads this topic first, and the end offsets of the topics of changes after that, finds all those writes below these
ends: a watermark needs no offsets.

Each landed table also has one message, with the key `landing/<keyspace>.<table>`: landing's report of it.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field, TypeAdapter

from writetime.changes.starts import LATEST, Start, Truncation
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.wire.agent_status import AgentStatus, Seconds
from writetime.wire.publishing import CompactedTopic, Sender, ensure_compacted

WATERMARKS_TOPIC = "writetime.watermarks"

# Messages come every few seconds, and Kafka compacts only older segments than a topic's newest.
_SEGMENT_MILLISECONDS = 3_600_000
_LANDING = "landing/"
# Delta keeps watermarks as 64-bit numbers.
_Instant = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True)
class TableMark:
    """The progress of one table (times in microseconds): all writes before `until` are published, 0 if that is unknown;
    and the time of its published snapshot, or of the one to publish now, 0 if there is none.

    `id` is the table's id. Changes that were captured before `since` belong to an earlier table of the name.
    `truncation` is the database's record of the last TRUNCATE.
    """

    until: _Instant
    snapshot_at: _Instant = 0
    id: str = ""
    since: _Instant = 0
    truncation: Truncation | None = None

    def start(self, table_id: UUID | None, *, of_log: bool) -> Start:
        """Return where the source's changes of the table with this id begin to count; see `Start` for `of_log`."""
        if self.id and table_id is not None and self.id != str(table_id):
            return Start(since=LATEST, of_log=of_log)
        return Start(self.since, self.truncation, self.snapshot_at if self.truncation else 0, of_log)


@dataclass(frozen=True)
class SourceMarks:
    """The published progress of one source, by table. A retired source sends no more changes.

    `status` is the agent's status, see `agent_status`.
    """

    tables: Mapping[str, TableMark] = field(default_factory=dict)
    retired: bool = False
    status: AgentStatus = field(default_factory=dict)


@dataclass(frozen=True)
class LandingPosition:
    """The position of landing of a table at its report: the version of the lake's changes whose commit names the
    offsets, the watermarks of the registered sources, the latest skipped message without a newer snapshot
    (microseconds, 0 if none), and a digest of the schemas that the lake follows.

    With it a new process reads one small file of the lake to see that there is nothing new.
    """

    version: int
    until: Mapping[str, _Instant]
    held_since: _Instant
    schemas: str


@dataclass(frozen=True)
class StepReport:
    """The report of one step of `follow` after landing."""

    # Seconds since 1970, 0 if it is not behind.
    behind_since: Seconds = 0.0
    # All rows that it has done, and those of the last batch.
    rows: int = 0
    batch: int = 0
    # The seconds from when there was something to do until the last batch had done it.
    delay: float = 0.0
    # Why its last attempt failed.
    fault: str | None = None
    # Whether rows were not as the table's entry expects them.
    unexpected: bool = False


@dataclass(frozen=True)
class LandingReport:
    """Landing's report of one table. Times are in seconds since 1970.

    The table is `landing`, and a `fault` may hold its watermarks; or it is `waiting` for a service that does not
    answer; or it is `set aside` because of a `fault`. The fault came first at `since` and again with each of
    `attempts`. `changes` is the number that this process has landed. `steps` has the steps of `follow`, by name, if it
    follows the table or did so, as of `steps_at`.
    """

    at: Seconds
    status: Literal["landing", "waiting", "set aside"] = "landing"
    changes: int = 0
    fault: str | None = None
    since: Seconds = 0.0
    attempts: int = 0
    place: LandingPosition | None = None
    steps: Mapping[str, StepReport] = field(default_factory=dict)
    steps_at: Seconds = 0.0


_SOURCE = TypeAdapter(SourceMarks)
_REPORT = TypeAdapter(LandingReport)


def ensure_watermarks_topic(settings: Settings) -> None:
    """Create the topic if it does not exist."""
    ensure_compacted(settings, WATERMARKS_TOPIC, **{"segment.ms": str(_SEGMENT_MILLISECONDS)})


def send(sender: Sender, source: str, marks: SourceMarks) -> None:
    """Hand over the published progress of a source; the topic must exist."""
    sender.produce(WATERMARKS_TOPIC, json.dumps(asdict(marks)).encode(), source.encode(), 0)


def send_report(sender: Sender, table: str, report: LandingReport | None) -> None:
    """Hand over landing's report of a table, None to delete it; the topic must exist."""
    value = None if report is None else json.dumps(asdict(report)).encode()
    sender.produce(WATERMARKS_TOPIC, value, (_LANDING + table).encode(), 0)


def statuses(sources: Mapping[str, SourceMarks]) -> dict[str, AgentStatus]:
    """Return the last status of the agent of each source that is not retired, by the source's name."""
    return {source: marks.status for source, marks in sorted(sources.items()) if marks.status and not marks.retired}


class Sources(dict[str, SourceMarks]):
    """The last message of each source, by its name, as of one read of the topic. It does not change."""

    def __init__(
        self, messages: Mapping[str, SourceMarks] = {}, by_table: Mapping[str, Mapping[str, SourceMarks]] = {}
    ) -> None:
        super().__init__(messages)
        self._by_table = by_table

    def of(self, table: str) -> Mapping[str, SourceMarks]:
        """Return the sources that have reported a table. It is cached, because each check for changes needs it."""
        return self._by_table.get(table, {})

    def after(self, messages: Mapping[str, SourceMarks | None]) -> "Sources":
        """Return the watermarks after other messages of sources; None deletes a source."""
        every, by_table = dict(self), dict(self._by_table)
        changed: dict[str, dict[str, SourceMarks]] = {}
        for source, marks in messages.items():
            was = every.pop(source, None)
            tables = {} if marks is None else marks.tables
            for table in {*tables, *({} if was is None else was.tables)}:
                if table not in changed:
                    by_table[table] = changed[table] = dict(by_table.get(table, {}))
                if marks is not None and table in tables:
                    changed[table][source] = marks
                else:
                    del changed[table][source]
            if marks is not None:
                every[source] = marks
        return Sources(every, by_table)


class WatermarkTopic:
    """Reads the topic, which is created if it does not exist."""

    def __init__(self, settings: Settings) -> None:
        ensure_watermarks_topic(settings)
        self._topic = CompactedTopic(settings, WATERMARKS_TOPIC, _read_message)
        self._sources = Sources()
        self.reports: Mapping[str, LandingReport] = {}
        """Landing's last report of each table, by its name, as of the last `read`, which replaces it."""
        # Tables that land at the same time share it.
        self._reading = threading.Lock()

    @property
    def skipped(self) -> int:
        """The number of messages that could not be read."""
        return self._topic.skipped

    def read(self) -> Sources:
        """Return the last message of each source, by its name, or raise `WritetimeError`. A message without a value
        deletes the one before.
        """
        with self._reading:
            found = [message for _, message in self._topic.read_on()]
            if found:
                reports, marks = dict(self.reports), dict[str, SourceMarks | None]()
                for name, content in found:
                    table = name.removeprefix(_LANDING)
                    if isinstance(content, LandingReport):
                        reports[table] = content
                    elif content is not None or table == name:
                        marks[name] = content
                    else:
                        reports.pop(table, None)
                self.reports, self._sources = reports, self._sources.after(marks)
            return self._sources


def _read_message(key: bytes, value: bytes | None) -> tuple[str, SourceMarks | LandingReport | None]:
    """Read a message; unknown fields are left out, because a newer agent may send them."""
    name = key.decode()
    if value is None:
        return name, None
    return name, (_REPORT if name.startswith(_LANDING) else _SOURCE).validate_json(value)


def retire(settings: Settings, source: str) -> None:
    """Record that a source, by its name, sends no more changes: nothing waits for it any longer. An agent that
    publishes its changes makes it count again. Raise `WritetimeError` if no agent has ever reported the source.
    """
    known = WatermarkTopic(settings).read()
    if source not in known:
        listed = ", ".join(sorted(n for n, marks in known.items() if not marks.retired)) or "none"
        raise WritetimeError(f"no agent has reported {source}; the nodes and logs with agents are: {listed}")
    sender = Sender(settings, f"{source} cannot be retired")
    send(sender, source, replace(known[source], retired=True))
    sender.flush()
