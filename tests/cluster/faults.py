"""From writes to the lake on three nodes and three brokers, while nodes, brokers, agents and landing are killed.

python -m tests.cluster.faults --seconds 600 --seed 1

Each node has its own agent. Threads write at QUORUM. A broker is killed while changes and row events are published and
landed. A node is killed while writes continue, and a table changes meanwhile. While a node or broker is down, the lake
still follows, and `verify` proves it. At the end, for each table, the views match `SELECT *` at ALL, each acknowledged
write is among the lake's changes, and each message of Kafka is in the lake once.
"""

import argparse
import json
import random
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
from cassandra import ConsistencyLevel

from tests.cluster.servers import ADDRESSES, REPLICATION, Servers, session_at
from tests.support import answers
from tests.support.expected import assert_same
from tests.support.made import rewrite
from tests.support.merged import with_one_form
from tests.support.messages import decoded
from tests.support.programs import Program
from tests.support.settings import write_settings
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.workload import SHORT_TTL, TYPES, Clock, Counters, Filling, Writer, write_times
from writetime.changes.model import change_schema
from writetime.clients.kafka import beginning_offsets, end_offsets
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.delta.parquet import PARTITION, read_file
from writetime.files.row_form import to_micros
from writetime.lake import state, views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.table import LakeTable, create_table, open_table, view_schema
from writetime.landing.landing import Landing
from writetime.landing.topics import captured_tables
from writetime.row_events import publish, stream
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.verify.comparison import verify
from writetime.wire.topic_names import changes_topic, row_events_topic
from writetime.wire.watermarks import WatermarkTopic

# Writes of each thread that have to be acknowledged while a node is away.
_WRITES = 20


class _Counted(Writer):
    """Counts the acknowledged writes, and leaves CPU time to the other programs: one machine does the work of three."""

    written = 0

    def step(self) -> None:
        """Write once."""
        super().step()
        self._stop_writing.wait(0.1)

    def try_to(self, statement: str) -> bool:
        """Execute a statement; return whether it was acknowledged."""
        acknowledged = super().try_to(statement)
        self.written += acknowledged
        return acknowledged


class _AllKinds(_Counted):
    """Leaves its table's columns alone: before Cassandra 5.1 two nodes may not change one schema at once."""

    def alter(self) -> None:
        """Do nothing."""


class _Counters(_Counted, Counters):
    """Adds to counters."""


class _Filling(_Counted, Filling):
    """Fills segments."""


@dataclass
class Report:
    """The result of a run."""

    acknowledged: int
    unknown: int
    rows: int
    changes: int
    events: int
    copies: float
    faults: Counter[str]
    agent_ends: list[Counter[int]]
    landing_ends: Counter[int]


class ClusterRun:
    """One run in a separate keyspace. `replicas` is the setting of the agents."""

    def __init__(self, servers: Servers, home: Path, seed: int, replicas: str = "all") -> None:
        self._replicas = replicas
        self._servers = servers
        self._home = home
        self._random = random.Random(seed)
        self._keyspace = f"k{uuid.uuid4().hex[:10]}"
        self._quiet = f"{self._keyspace}.quiet"
        self._quiet_rows = 0
        self._settings = servers.settings.model_copy(
            update={"lake": servers.settings.lake.model_copy(update={"path": str(home / "lake"), "buckets": 4})}
        )
        write_settings(self._settings, home / "writetime.toml")
        self._agents = [self._agent(address) for address in ADDRESSES]
        self._landing = Program(home, "follow", "follow")
        self._faults: Counter[str] = Counter()
        self._stop = Event()
        self._open = ExitStack()
        clock = Clock()
        self._session = self._open.enter_context(session_at(self._settings, timestamp_generator=clock))
        self._session.execute(f"CREATE KEYSPACE {self._keyspace} WITH replication = {REPLICATION}")
        for statement in TYPES:
            self._session.execute(statement.replace("{ks}", self._keyspace))
        self._session.execute(f"CREATE TABLE {self._quiet} (k int PRIMARY KEY, v text) WITH cdc = true")
        kinds = [(_AllKinds, "all_kinds"), (_Counters, "counts"), (_Filling, "filling")]
        self._writers = [
            kind(self._session, clock, self._keyspace, name, 1000 * seed + i, self._stop)
            for i, (kind, name) in enumerate(kinds)
        ]
        self._tables = [self._quiet, *(f"{self._keyspace}.{writer.table}" for writer in self._writers)]

    def node_settings(self, address: str) -> Settings:
        """The settings on a node's machine: those of all, and which node it is."""
        capture = {
            "poll_seconds": 0.2,
            "node": address,
            "state_dir": self._home / f"agent-{address}" / "state",
            "snapshot": "schema-only",
            "replicas": self._replicas,
        }
        return self._settings.model_copy(
            update={
                "cassandra": self._settings.cassandra.model_copy(update={"contact_points": [address]}),
                "capture": self._settings.capture.model_copy(update=capture),
            }
        )

    def _agent(self, address: str) -> Program:
        folder = self._home / f"agent-{address}"
        folder.mkdir(parents=True)
        write_settings(self.node_settings(address), folder / "writetime.toml")
        return Program(folder, "agent", "agent")

    def run(self, seconds: float) -> Report:
        """Write and break things for this long, at least each once; then check.

        Raises:
            AssertionError: something is missing or wrong; the ends of the logs are printed.
        """
        try:
            for thread in (*self._writers, *self._agents, self._landing):
                thread.start()
            running = [self.node_settings(address).capture.state_dir / "status.json" for address in ADDRESSES]
            self._until(lambda: all(file.exists() for file in running), "all agents follow their nodes")
            self._until(lambda: {*self._tables} <= {*captured_tables(self._settings)}, "all tables have topics")
            self._follow("before anything breaks")
            self._publish_rows()
            deadline = time.monotonic() + seconds
            while True:
                for fault in self._random.sample([self._lose_broker, self._lose_node], 2):
                    fault()
                    self._alive()
                if time.monotonic() > deadline:
                    break
            self._drain()
            report = self._check()
            self._backfill()
            return report
        except BaseException:
            for program in (*self._agents, self._landing):
                print(f"--- {program.log} ended {dict(program.ends)}\n{program.tail()}")
            raise
        finally:
            self._stop.set()
            for thread in (*self._agents, self._landing):
                if thread.ident is not None:
                    thread.end()
            self._open.close()

    # --- faults -------------------------------------------------------------------------------------------------------

    def _lose_broker(self) -> None:
        """Kill a broker, continue without it, and start it again."""
        broker = self._random.choice(self._servers.brokers)
        broker.stop(signal.SIGKILL)
        self._faults["broker"] += 1
        self._random.choice(self._agents).kill()
        self._faults["agent"] += 1
        self._follow("a broker is away")
        self._publish_rows()
        broker.start()
        self._publish_rows()

    def _lose_node(self) -> None:
        """Kill a node, continue without it, and start it again."""
        number = self._random.randrange(len(ADDRESSES))
        node = self._servers.nodes[number]
        node.stop(signal.SIGKILL)
        self._faults["node"] += 1
        before = [writer.written for writer in self._writers]
        self._landing.kill()
        self._faults["landing"] += 1
        self._session.execute(f"ALTER TABLE {self._quiet} ADD without_{self._faults['node']} int", timeout=60)
        self._follow("a node is away")
        self._until(
            lambda: all(w.written >= n + _WRITES for w, n in zip(self._writers, before, strict=True)),
            "writes at QUORUM go on without a node",
        )
        assert node.pid() is None
        node.start()
        self._until(lambda: all(host.is_up for host in self._session.hosts or ()), "the node is seen")

    def _follow(self, when: str) -> None:
        """Write to a table of which every row is known, and wait until the lake is proven to have it all."""
        for _ in range(5):
            self._quiet_rows += 1
            statement = f"INSERT INTO {self._quiet} (k, v) VALUES ({self._quiet_rows}, '{when}')"
            while not self._writers[0].try_to(statement):
                self._alive()
        self._until(lambda: self._landed() == self._quiet_rows, f"the lake has what was written while {when}")
        self._verify(self._quiet)

    def _landed(self) -> int:
        try:
            return sum(part.num_rows for part in views.virtual(open_table(self._settings, self._quiet)))
        except WritetimeError:
            return -1  # The table has not landed yet.

    def _publish_rows(self) -> None:
        """Publish row events. A run that fails because a broker is down is repeated, as Dagster does."""

        def done() -> bool:
            try:
                table = open_table(self._settings, self._quiet)
                stream.extend(table)
                publish.publish(self._settings, table)
            except WritetimeError as e:
                print(f"publishing again: {e}", flush=True)
                return False
            return True

        self._until(done, "row events are published")

    def _alive(self) -> None:
        for writer in self._writers:
            assert writer.fault is None, f"{writer.name}: {writer.fault}"

    def _until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:.0f} s in vain until {what}"
            self._alive()
            time.sleep(0.1)
        print(f"{time.monotonic() - began:5.1f} s until {what}", flush=True)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Wait until all writes to each node are in the lake, by the nodes' watermarks."""
        self._stop.set()
        for writer in self._writers:
            writer.join(PATIENCE_SECONDS)
        self._alive()
        written = time.time_ns() // 1000
        marks = WatermarkTopic(self._settings)

        def published() -> bool:
            found = [source.tables for source in marks.read().values() if self._quiet in source.tables]
            return len(found) == len(ADDRESSES) and all(
                table in tables and tables[table].until > written for tables in found for table in self._tables
            )

        self._until(published, "each node's watermark has passed the last write")
        for program in (*self._agents, self._landing):
            program.end()
        for table in self._tables:
            Landing(self._settings, table).drain()
        # Cells with short TTLs have expired.
        time.sleep(SHORT_TTL)

    def _check(self) -> Report:
        for program in (*self._agents, self._landing):
            assert program.ends[0] == 1, f"{program.log} ended {dict(program.ends)}"
        for address in ADDRESSES:
            totals = json.loads((self.node_settings(address).capture.state_dir / "progress.json").read_text())["totals"]
            assert totals["segments_vanished"] == totals["segments_set_aside"] == 0, totals
        rows = changes = 0
        for name in self._tables:
            table = open_table(self._settings, name)
            rows += self._check_views(table)
            count = sum(file.rows for file in table.changes.load().files)
            ends, begins = (ask(self._settings, changes_topic(name)) for ask in (end_offsets, beginning_offsets))
            assert count == sum(ends.values()) - sum(begins.values()), f"{name}: each message is in the lake once"
            changes += count
        for writer in self._writers:
            table = open_table(self._settings, f"{self._keyspace}.{writer.table}")
            schema, files = change_schema(table.schema()), table.changes.load().files
            landed = write_times(read_file(table.changes.storage, file.path, schema) for file in files)
            missing = list(writer.missing(landed))
            assert not missing, f"{writer.table}: {len(missing)} acknowledged writes are missing: {missing[:3]}"
        for name in self._tables:
            self._verify(name)
        acknowledged = sum(writer.written for writer in self._writers)
        return Report(
            acknowledged=acknowledged,
            unknown=sum(writer.unknown for writer in self._writers),
            rows=rows,
            changes=changes,
            events=self._check_events(),
            copies=round(changes / acknowledged, 2),
            faults=self._faults,
            agent_ends=[agent.ends for agent in self._agents],
            landing_ends=self._landing.ends,
        )

    def _check_views(self, table: LakeTable) -> int:
        """Compare both views with the answer of all replicas; return how many rows it has."""
        wanted = self._answer(table.name)
        virtual = pa.concat_tables([view_schema(table.schema()).empty_table(), *views.virtual(table)])
        assert_same(with_one_form(virtual, table.schema()), wanted)
        state.fold(table)
        rewrite(table)
        compacted = table.view.load().table.to_pyarrow_table().sort_by(PARTITION).select(virtual.column_names)
        assert_same(with_one_form(compacted, table.schema()), wanted)
        return wanted.num_rows

    def _answer(self, name: str) -> pa.Table:
        schema = self._schema(name)
        with session_at(self._settings, ConsistencyLevel.ALL) as session:
            found = answers.decoded(answers.rows(answers.raw(session), schema), schema)
            return with_one_form(to_micros(found, schema), schema)

    def _schema(self, name: str) -> TableSchema:
        return read_schema(self._session, name)

    def _verify(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                report = verify(self._settings, open_table(self._settings, name))
                break
            except Transient:
                # As Dagster does: a node that goes away takes the requests along that it has.
                if time.monotonic() > deadline:
                    raise
        assert report.proven, f"{name}: {report.real}"
        assert not report.differences

    def _check_events(self) -> int:
        """Each row event is in Kafka once, and they lead to the rows of the view."""
        self._publish_rows()
        events = decoded(self._settings, row_events_topic(self._quiet))
        assert len({event["event_id"] for event in events}) == len(events)
        assert {event["after"]["k"] for event in events} == set(range(1, self._quiet_rows + 1))
        return len(events)

    def _backfill(self) -> None:
        """Bring snapshots by all nodes into another lake: of three replicas each row is there once."""
        folders = [
            str(folder)
            for address in ADDRESSES
            for folder in take_snapshot(self.node_settings(address), self._quiet, "all")
        ]
        lake = self._settings.lake.model_copy(update={"path": str(self._home / "backfilled")})
        found = find_snapshots(folders)
        table = create_table(self._settings.model_copy(update={"lake": lake}), found.schema)
        copies = sum(count for _, count in backfill(table, found))
        assert copies >= 2 * self._quiet_rows
        wanted = self._answer(self._quiet)
        assert_same(pa.concat_tables(views.virtual(table)).select(wanted.column_names), wanted)


def main() -> None:
    """Run once, on separate servers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long things are broken, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replicas", choices=["all", "one"], default="all", help="the agents' capture.replicas")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        servers = Servers(Path(folder) / "servers")
        try:
            servers.start()
            began = time.monotonic()
            report = ClusterRun(servers, Path(folder), options.seed, options.replicas).run(options.seconds)
            print(f"seed {options.seed}, {time.monotonic() - began:.0f} s: {report}")
        finally:
            servers.stop()


if __name__ == "__main__":
    main()
