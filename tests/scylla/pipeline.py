"""From writes in ScyllaDB to the lake and to row events, while programs are killed and tablets are split and merged."""

import json
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cassandra.cluster import Session

from tests.scylla.workload import TYPES, LiveWriter
from tests.support import answers, scylla_server
from tests.support.event_replay import events, replayed
from tests.support.lake_answers import view_rows
from tests.support.lake_views import assert_views
from tests.support.messages import decoded
from tests.support.programs import Program
from tests.support.settings import write_settings
from tests.support.waiting import PATIENCE_SECONDS
from writetime.capture.state_files import read_json
from writetime.core.config import Capture, ScyllaCdc, Settings
from writetime.lake import views
from writetime.lake.table import LakeTable, open_table, view_schema
from writetime.landing.landing import Landing
from writetime.row_events import publish, stream
from writetime.schema.system import read_schema
from writetime.verify.comparison import VerifyReport, verify
from writetime.wire.topic_names import row_events_topic

# To how many tablets each table is split and merged, one after the other. More would not fit into the 100 tablets that
# ScyllaDB allows for each shard, on a node with one shard.
SPLITS = (2, 4, 1)
# Each doubling or halving waits until ScyllaDB has read the sizes of all tablets again, which it does each minute.
_RESIZE_SECONDS = 900.0
_NUDGE_SECONDS = 10.0
# By then, cells with short TTLs have expired, and writes ahead of the clock are in the past.
_SETTLE_SECONDS = 5


def _reading(*, tablets: bool) -> ScyllaCdc:
    """Return how logs are read, some 30 seconds after a write at the latest.

    With `ring_delay_ms: 0`, as in clusters for tests, ScyllaDB switches to a new set of streams at once
    (`new_generation_timestamp` in `cdc/generation.cc`), and then writes some rows to the streams of the closed set.
    """
    confidence, rescan = (10, 20) if tablets else (30, 0)
    return ScyllaCdc(
        window_seconds=1,
        confidence_seconds=confidence,
        rescan_seconds=rescan,
        # Of random updates some write nothing.
        empty_updates="pass",
    )


@dataclass
class Followed:
    """One table: its writer, and its first other fault."""

    writer: LiveWriter
    fault: str | None = None

    @property
    def name(self) -> str:
        """The table, as keyspace.table."""
        return self.writer.full_name

    def require_no_fault(self) -> None:
        """Fail with the first fault, if there is one."""
        for fault in (self.writer.fault, self.fault):
            if fault is not None:
                raise AssertionError(f"{self.name}, seed {self.writer.seed}: {fault}")


class Pipeline:
    """Some tables of one keyspace, an agent that reads their logs, and landing."""

    def __init__(
        self, settings: Settings, session: Session, home: Path, seed: int, tables: int, *, tablets: bool
    ) -> None:
        """Make programs and writers; the keyspace of the settings is there, with tablets or without."""
        self.seed = seed
        self._tablets = tablets
        self.done: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._session = session
        keyspace = settings.cassandra.keyspace
        names = [f"t{i}" for i in range(tables)]
        capture = Capture(
            source="scylla-cdc",
            tables=[f"{keyspace}.{name}" for name in names],
            state_dir=home / "state",
            partitions=2,
            snapshot="schema-only",
        )
        self.settings = settings.model_copy(
            update={
                "capture": capture,
                "lake": settings.lake.model_copy(update={"path": str(home / "lake"), "buckets": 4}),
                "scylla_cdc": _reading(tablets=tablets),
            }
        )
        write_settings(self.settings, home / "writetime.toml")
        self.agent = Program(home, "agent", "agent")
        self.landing = Program(home, "follow", "follow")
        self._stop = threading.Event()
        assert session.cluster is not None
        raw = answers.raw(session.cluster.connect())
        writers = [
            LiveWriter(session, raw, keyspace, name, 1000 * seed + i, self._stop) for i, name in enumerate(names)
        ]
        self.tables = {writer.table: Followed(writer) for writer in writers}

    def run(self, seconds: float) -> None:
        """Write and kill for this long, and until tablets are split and merged; then wait until all is published."""
        resizing = threading.Thread(target=self._resize, name="resizing")
        try:
            for statement in TYPES:
                self._session.execute(statement.replace("{ks}", self.settings.cassandra.keyspace), timeout=120)
            for table in self.tables.values():
                with self._faults_of(table):
                    table.writer.create()
            written_to = [table.writer for table in self.tables.values() if table.fault is None]
            for thread in (self.agent, self.landing, *written_to, *([resizing] if self._tablets else [])):
                thread.start()
            self._break_things(seconds)
            if self._tablets:
                resizing.join()
            self._stop.set()
            for writer in written_to:
                writer.join()
            self._wait_until_published()
        finally:
            self._stop.set()
            self.agent.end()
            self.landing.end()

    # --- while it runs ------------------------------------------------------------------------------------------------

    def _break_things(self, seconds: float) -> None:
        steps: list[tuple[str, Callable[[], None]]] = [("agent killed", self.agent.kill)] * 3
        steps += [("landing killed", self.landing.kill)] * 2
        self._random.shuffle(steps)
        began = time.monotonic()
        for i, (name, step) in enumerate(steps):
            time.sleep(max(0.0, began + seconds * (i + self._random.random()) / len(steps) - time.monotonic()))
            step()
            self.done[name] += 1
            print(f"{time.monotonic() - began:.0f} s: {name}", flush=True)
        time.sleep(max(0.0, began + seconds - time.monotonic()))

    def _resize(self) -> None:
        """Split and merge the tablets of all tables, and wait each time until it is done."""
        for count in SPLITS:
            deadline = time.monotonic() + _RESIZE_SECONDS
            waiting = list(self.tables.values())
            while waiting and time.monotonic() < deadline:
                # Again and again: the balancer acts on a change, but not of a table whose size it does not know yet.
                for table in waiting:
                    with self._faults_of(table):
                        table.writer.alter_options(f"tablets = {{'min_tablet_count': {count}}}")
                time.sleep(_NUDGE_SECONDS)
                waiting = [table for table in waiting if self.streams(table)[-1] != count]
            for table in waiting:
                table.fault = table.fault or f"has {self.streams(table)} streams in turn, not {count} at last"
            print(f"all tables have {count} tablets", flush=True)

    def _wait_until_published(self) -> None:
        """Wait until the agent has published each table up to the last write, and all cells with short TTLs have
        expired.
        """
        # The windows of the last writes are to be read for the second time, too.
        last = time.time_ns() // 1000 + round((_SETTLE_SECONDS + self.settings.scylla_cdc.rescan_seconds) * 1_000_000)
        path = self.settings.capture.state_dir / "logs.json"
        deadline = time.monotonic() + PATIENCE_SECONDS
        waiting = list(self.tables.values())
        while waiting and time.monotonic() < deadline:
            time.sleep(0.5)
            found = read_json(path) or {}
            waiting = [table for table in waiting if found.get(table.name, {}).get("until", 0) < last]
        for table in waiting:
            table.fault = table.fault or f"it was not published in time: {self._status(table)}\n{self.agent.tail()}"

    def _status(self, table: Followed) -> object:
        """Return the agent's report of a table."""
        path = self.settings.capture.state_dir / "status.json"
        return json.loads(path.read_text())["logs"].get(table.name) if path.exists() else None

    @contextmanager
    def _faults_of(self, table: Followed) -> Iterator[None]:
        """Note the first fault of a table, so that it does not hide the others."""
        try:
            yield
        except Exception:
            table.fault = table.fault or traceback.format_exc()

    # --- expectations -------------------------------------------------------------------------------------------------

    def lake(self, table: Followed) -> LakeTable:
        """Return a table in the lake.

        Raises:
            WritetimeError: nothing of it has landed.
        """
        return open_table(self.settings, table.name)

    def streams(self, table: Followed) -> list[int]:
        """Return how many streams the log of a table with tablets had, set by set."""
        query = "SELECT timestamp, stream_state, stream_id FROM system.cdc_streams "
        query += f"WHERE keyspace_name = '{self.settings.cassandra.keyspace}' AND table_name = '{table.writer.table}'"
        rows = table.writer.until_answered(lambda: list(self._session.execute(query, timeout=60)))
        counts = Counter(row.timestamp for row in rows if row.stream_state == 0)
        return [counts[timestamp] for timestamp in sorted(counts)]

    def check_views(self, table: Followed) -> int:
        """Land the remaining changes and compare the views with `SELECT *`; return the number of its rows."""
        table.require_no_fault()
        Landing(self.settings, table.name).drain()
        with scylla_server.raw_session(self.settings) as session:
            return assert_views(session, read_schema(self._session, table.name), self.lake(table))

    def check_row_events(self, table: Followed) -> int:
        """Compare the row events, replayed, with the view, and those in Kafka with those in the lake; return how many
        they are."""
        table.require_no_fault()
        Landing(self.settings, table.name).drain()
        lake = self.lake(table)
        stream.extend(lake)
        publish.publish(self.settings, lake)
        schema = view_schema(lake.schema())
        assert replayed(lake, has_dropped=True) == view_rows([schema.empty_table(), *views.virtual(lake)])
        # Where row events begin again, the lake has no earlier ones.
        in_lake = {event_id for batch in events(lake) for event_id in batch["event_id"].to_pylist()}
        if not in_lake:
            return 0
        last: dict[bytes, int] = {}
        published = decoded(self.settings, row_events_topic(table.name))
        for event in published:
            assert last.get(event["key"], 0) <= event["sequence"]
            last[event["key"]] = event["sequence"]
        times = Counter(event["event_id"] for event in published)
        assert set(times.values()) == {1}
        assert in_lake <= times.keys()
        return len(published)

    def verify(self, table: Followed) -> VerifyReport:
        """Compare the view with the database as `writetime verify` does."""
        table.require_no_fault()
        Landing(self.settings, table.name).drain()
        return verify(self.settings, self.lake(table))

    def summary(self) -> dict[str, int]:
        """Return the statements."""
        return {**sum((table.writer.counts for table in self.tables.values()), Counter()), **self.done}
