"""A separate node with tiny segments, agents as threads or programs, and the changes that they published, merged."""

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from cassandra.concurrent import execute_concurrent_with_args

from tests.support.format_server import FormatServer
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.messages import messages
from tests.support.settings import write_settings
from tests.support.waiting import wait_for
from writetime.capture.commitlog_agent import Pace, run
from writetime.changes.model import change_schema
from writetime.clients.kafka import NoTopic, end_offsets, messages_between
from writetime.core.config import Capture, Settings
from writetime.core.errors import WritetimeError
from writetime.core.waiting import wait_until
from writetime.files.row_form import to_micros
from writetime.merge import live_rows, merge
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.wire.change_messages import ChangeDecoder, namespace_of
from writetime.wire.publishing import SchemaTopic
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import WatermarkTopic

REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
# Of agents in threads: tests wait for watermarks, for the status, and for the next attempt after a fault.
_PACE = Pace(mark=0.25, pause=0.1, status=0.25, left=1.0)
# Two fit into a segment, and one of them may be no more than half of it.
_FILLING_BYTES = 400_000
# A table without CDC, outside of the captured keyspaces.
_REST = "rest.filling"


class Captured:
    """A keyspace of a node, the settings of an agent, and the changes that the agent published."""

    def __init__(self, node: FormatServer, settings: Settings, keyspace: str, home: Path) -> None:
        self.node = node
        self.settings = settings
        self.keyspace = keyspace
        # Of agents in threads.
        self.pace = _PACE
        self._home = home
        self.log = home / "agent.log"
        self._schemas = SchemaTopic(settings)
        self._marks = 0
        # Of the marks that were published: which, and where the topic was read up to.
        self._marks_seen: set[int] = set()
        self._marks_read: dict[int, int] = {}
        self._faults: list[BaseException] = []
        # Where the messages of topics begin that `changes` returns.
        self._starts: dict[str, dict[int, int]] = {}
        self.write(f"CREATE KEYSPACE {keyspace} WITH replication = {REPLICATION}")
        self.write("CREATE TABLE {ks}.marks (id int PRIMARY KEY, filling blob) WITH cdc = true")

    @cached_property
    def watermarks(self) -> WatermarkTopic:
        """The progress of all sources. It is cached: the topic has all tests' messages, and only new ones are read."""
        return WatermarkTopic(self.settings)

    @cached_property
    def _marks_schema(self) -> TableSchema:
        return self.schema("marks")

    def write(self, *statements: str) -> None:
        """Execute statements, with the keyspace for `{ks}`."""
        for statement in statements:
            self.node.write_one(statement.replace("{ks}", self.keyspace))

    def end(self) -> None:
        """Drop the keyspace, and leave no segment with writes to it. Each agent that comes later would read the schemas
        of all tables, and an agent that does not know a table sets its segments aside."""
        self.node.write_one(f"CREATE KEYSPACE IF NOT EXISTS rest WITH replication = {REPLICATION}")
        self.node.write_one(f"CREATE TABLE IF NOT EXISTS {_REST} (id int PRIMARY KEY, filling blob)")
        indexes = list(self.node.cdc_raw.glob("*_cdc.idx"))

        def is_growing(index: Path) -> bool:
            # The node has another link to a segment that it writes to. A failed test may leave other segments.
            segment = index.with_name(index.name.replace("_cdc.idx", ".log"))
            return segment.exists() and segment.stat().st_nlink > 1 and not index.read_bytes().endswith(b"COMPLETED")

        def are_complete() -> bool:
            return not any(map(is_growing, indexes))

        while not wait_until(are_complete, 0.1, 0.02):
            self._fill(_REST, 1)
        for index in indexes:
            index.with_name(index.name.replace("_cdc.idx", ".log")).unlink(missing_ok=True)
            index.unlink(missing_ok=True)
        self.write("DROP KEYSPACE {ks}")

    def fill(self, segments: int) -> None:
        """Write so much that the node is done with some more segments."""
        self._fill(f"{self.keyspace}.marks", 2 * segments + 1)

    def _fill(self, table: str, count: int) -> None:
        session = self.node.session()
        insert = session.prepare(f"INSERT INTO {table} (id, filling) VALUES (-1, ?)")
        execute_concurrent_with_args(session, insert, [(os.urandom(_FILLING_BYTES),) for _ in range(count)])

    def schema(self, table: str) -> TableSchema:
        """The schema of a table now."""
        return read_schema(self.node.session(), f"{self.keyspace}.{table}")

    def changes(self, table: str, schema: TableSchema | None = None) -> pa.Table:
        """All changes of a table that were published, since `forget` if that was called."""
        schema = schema or self.schema(table)
        topic = changes_topic(schema.full_name)
        try:
            found = messages(self.settings, topic, self._starts.get(topic))
        except WritetimeError:
            return change_schema(schema).empty_table()
        changes = self._decoder(schema).decode([value for _, _, value in found])
        assert changes["key"].to_pylist() == [key for _, key, _ in found]
        return changes

    def _decoder(self, schema: TableSchema) -> ChangeDecoder:
        self._schemas.read_on()
        registered = self._schemas.ids_of_namespace(namespace_of(schema.full_name))
        return ChangeDecoder(schema, self._schemas.get, registered)

    def forget(self, table: str) -> None:
        """Let `changes` return only messages of a table that are published from now on."""
        topic = changes_topic(f"{self.keyspace}.{table}")
        with suppress(NoTopic):
            self._starts[topic] = end_offsets(self.settings, topic)

    def settle(self) -> None:
        """Wait until all that was written before is published: until a second mark is there. The first one may be in
        Kafka before what the same round has for other partitions; the agent waits for all of it before the next one."""
        for _ in range(2):
            self._marks += 1
            self.write(f"INSERT INTO {{ks}}.marks (id) VALUES ({self._marks})")
            wait_for(lambda: self._faults or self._marks in self._seen_marks())
            assert not self._faults, self._faults

    def _seen_marks(self) -> set[int]:
        """The marks that were published. The topic also has the messages of `fill`, and only new ones are read."""
        topic = changes_topic(f"{self.keyspace}.marks")
        try:
            ends = end_offsets(self.settings, topic)
        except WritetimeError:
            return self._marks_seen
        starts = {p: self._marks_read.get(p, 0) for p in ends}
        values = [m.value() for m in messages_between(self.settings, topic, starts, ends)]
        if values:
            self._marks_seen |= set(self._decoder(self._marks_schema).decode(values)["id"].to_pylist())
        self._marks_read = ends
        return self._marks_seen

    def assert_same(self, *tables: str) -> None:
        """Compare the merged changes of tables with the database's answers."""
        for table in tables:
            schema = self.schema(table)
            rows = live_rows(merge([self.changes(table)], schema), schema, as_of=int(time.time()))
            found, wanted = view_rows([to_micros(rows, schema)]), cql_rows(self.node.session(), schema)
            for row in wanted:
                assert row in found, f"{table}: {str(row)[:300]} is missing"
            assert found == wanted, f"{table}: {len(found)} rows, not {len(wanted)}, or in another order"

    def count(self, what: str) -> int:
        """Answer a query for a number."""
        return next(iter(self.node.session().execute(what.replace("{ks}", self.keyspace))))[0]

    @contextmanager
    def agent(self, **capture: Any) -> Iterator[None]:
        """An agent in a thread."""
        stop = threading.Event()

        def work() -> None:
            try:
                run(self.with_options(**capture), stop, self.pace)
            except BaseException as e:
                self._faults.append(e)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        assert not self._faults, self._faults

    def with_options(self, **capture: Any) -> Settings:
        """The settings with others for capture."""
        return self.settings.model_copy(update={"capture": self.settings.capture.model_copy(update=capture)})

    def program(self, module: str = "writetime") -> subprocess.Popen[bytes]:
        """An agent as a program, which may be killed; it runs when this returns. Another module runs it differently."""
        status = self.settings.capture.state_dir / "status.json"
        status.unlink(missing_ok=True)
        file = self._home / "agent.toml"
        write_settings(self.settings, file)
        log = self.log.open("ab")
        environment = {**os.environ, "WRITETIME_CONFIG": str(file)}
        process = subprocess.Popen([sys.executable, "-m", module, "agent"], stderr=log, env=environment)
        while not status.exists():
            assert process.poll() is None, self.log.read_text()[-2000:]
            time.sleep(0.05)
        return process


@contextmanager
def captured_keyspace(node: FormatServer, settings: Settings, home: Path) -> Iterator[Captured]:
    """A captured keyspace, until the end."""
    cassandra = settings.cassandra.model_copy(update={"port": node.port})
    # More than one partition, because each costs the broker time; an agent that checks less often costs less.
    capture = Capture(state_dir=home / "state", snapshot="schema-only", partitions=2, poll_seconds=0.05)
    settings = settings.model_copy(update={"cassandra": cassandra, "capture": capture})
    made = Captured(node, settings, f"c{uuid.uuid4().hex[:10]}", home)
    yield made
    made.end()
