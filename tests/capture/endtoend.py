"""From writes to the lake while everything is killed: a real node, a broker, agents and landing as programs.

python -m tests.capture.endtoend --seconds 600 --seed 1

Threads write to tables and change their schemas; one truncates its table, or drops and creates it. Meanwhile the agent
and two programs of `follow`, which share the tables, are killed at random. Broker, node, ZooKeeper and the object store
of the lake crash and start again, and agents of two more replicas publish copies of the same segments, late and in
another order. (`make test` has one program of `follow`, and the lake on disk.)
At the end, for every table, the lake's views match `SELECT *`, the row events replayed are the view, and each write
that the database acknowledged is among the lake's changes.
"""

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from cassandra.cluster import Cluster
from cassandra.policies import ConstantReconnectionPolicy

from tests.support import answers
from tests.support.captured import Captured
from tests.support.event_replay import replayed
from tests.support.format_server import FormatServer, KilledServer
from tests.support.lake_answers import unordered, view_rows
from tests.support.lake_views import assert_views
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.programs import Program
from tests.support.settings import write_settings
from tests.support.view_readers import by_query
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.workload import SHORT_TTL, TYPES, Clock, Counters, Emptied, Filling, Writer, write_times
from writetime.capture.commitlog_agent import Agent
from writetime.capture.node_schemas import Node
from writetime.capture.progress import AgentProgress
from writetime.changes.model import change_schema
from writetime.clients.database import connect
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.waiting import wait_until
from writetime.delta.parquet import read_file
from writetime.lake import state, views
from writetime.lake.table import open_table
from writetime.landing.landed_offsets import not_landed
from writetime.landing.landing import Landing
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import EmbeddedServer, free_port
from writetime.servers.zookeeper import ZooKeeperServer

NODE: dict[str, object] = {
    "commitlog_segment_size": "1MiB",
    # Acknowledged writes survive a crash.
    "commitlog_sync": "batch",
    "materialized_views_enabled": True,
}


@dataclass(frozen=True)
class Dose:
    """How much is done.

    Attributes:
        pause_seconds: the longest pause of a thread between two writes.
        kills: how often each program is killed, in addition to the kills while a server is down.
        quiet_seconds: the longest time between two faults.
        tables: the number of written tables with random columns, in addition to one of counters and one of large
            values. One of them is created later than the others.
        replicas: how many more agents publish copies of the segments.
        snapshot: which snapshots the agents of replicas publish.
    """

    pause_seconds: float = Writer.pause_seconds
    kills: int = 2
    quiet_seconds: float = 3.0
    tables: int = 3
    replicas: int = 2
    snapshot: str = "initial"


_FULL = Dose()


class _Other(Node):
    """Another node with the same data: it has its own host id, so its agent is another source of changes."""

    def rows(self, query: str) -> list[dict[str, Any]]:
        host_id = uuid.uuid5(uuid.NAMESPACE_OID, str(id(self)))
        return [row | {"host_id": host_id} if "host_id" in row else row for row in super().rows(query)]


class Replica:
    """The agent of another node with the same data: it gets copies of segments, and releases them."""

    def __init__(self, captured: Captured, home: Path, snapshot: str) -> None:
        self.folder = home / "cdc_raw"
        self.folder.mkdir(parents=True)
        self.fault: BaseException | None = None
        self._delivered: set[str] = set()
        self._settings = captured.with_options(
            state_dir=home / "state", cdc_raw=self.folder, finished="delete", snapshot=snapshot
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with (
                closing(AgentProgress(self._settings.capture.state_dir)) as progress,
                connect(self._settings) as session,
                closing(Agent(self._settings, _Other(session, None), progress)) as agent,
            ):
                agent.follow(self._stop)
        except BaseException as e:
            self.fault = e

    def deliver(self, archive: Path, chooser: random.Random) -> int:
        """Hand over the segments that the first agent is done with, in any order of those of one start of the node;
        return how many.
        """
        new = [path for path in sorted(archive.glob("*_cdc.idx")) if path.name not in self._delivered]
        chooser.shuffle(new)
        # The agent asks for segments that are missing once it gets one of a later start.
        new.sort(key=lambda path: int(path.name.split("-")[2].removesuffix("_cdc.idx")) // 1000)
        for index in new:
            for path in (index.with_name(index.name.replace("_cdc.idx", ".log")), index):
                partial = self.folder / f"{path.name}.part"
                partial.write_bytes(path.read_bytes())
                partial.replace(self.folder / path.name)
            self._delivered.add(index.name)
        return len(new)

    def is_done(self) -> bool:
        """Whether all that was delivered is published."""
        if self.fault is not None:
            raise RuntimeError("a replica's agent ended") from self.fault
        return not list(self.folder.glob("*.log"))

    def end(self) -> None:
        """Stop the agent."""
        self._stop.set()
        self._thread.join()

    @property
    def progress(self) -> dict[str, Any]:
        """The agent's record of its progress."""
        return json.loads((self._settings.capture.state_dir / "progress.json").read_text())


@dataclass
class Report:
    """The result of a run."""

    acknowledged: int
    unknown: int
    refused: int
    alterations: int
    rows: int
    changes: int
    segments: int
    delivered: int
    faults: Counter[str]
    agent_ends: Counter[int]
    follow_ends: Counter[int]


class EndToEnd:
    """One run in a separate keyspace."""

    def __init__(
        self,
        node: FormatServer,
        kafka: KafkaServer,
        settings: Settings,
        home: Path,
        seed: int,
        dose: Dose = _FULL,
        servers: Mapping[str, EmbeddedServer] | None = None,
    ) -> None:
        """Prepare a run. `servers` are others that crash, too, by their names."""
        self._dose = dose
        self._servers = servers or {}
        self._random = random.Random(seed)
        self._node = node
        self._kafka = kafka
        self._home = home
        self._archive = home / "archive"
        lake = {"buckets": 4} if settings.lake.storage_options else {"path": str(home / "lake"), "buckets": 4}
        capture = {"state_dir": home / "state", "finished": "archive", "archive": str(self._archive), "partitions": 2}
        self._settings = settings.model_copy(
            update={
                "cassandra": settings.cassandra.model_copy(update={"port": node.port}),
                "lake": settings.lake.model_copy(update=lake),
                "capture": settings.capture.model_copy(update=capture),
            }
        )
        self._captured = Captured(node, self._settings, f"e{uuid.uuid4().hex[:10]}", home)
        self._captured.write(*TYPES)
        write_settings(self._settings, home / "writetime.toml")
        self._agent = Program(home, "agent", "agent")
        names = ["follow", "follow-too"] if settings.follow.share else ["follow"]
        self._follow = [Program(home, name, "follow") for name in names]
        self._stop = threading.Event()
        self._faults: Counter[str] = Counter()
        clock = Clock()
        self._cluster = Cluster(
            ["127.0.0.1"],
            port=node.port,
            connect_timeout=60,
            reconnection_policy=ConstantReconnectionPolicy(0.5, max_attempts=100_000),
            timestamp_generator=clock,
            schema_metadata_enabled=False,
        )
        session = self._cluster.connect()
        others = [(Counters, "counts"), (Filling, "filling"), (Emptied, "emptied")]
        kinds = [(Writer, f"t{i}") for i in range(dose.tables)] + others
        self._writers = [
            kind(session, clock, self._captured.keyspace, name, 1000 * seed + i, self._stop)
            for i, (kind, name) in enumerate(kinds)
        ]
        for writer in self._writers:
            writer.pause_seconds = dose.pause_seconds

    def run(self, seconds: float) -> Report:
        """Write and break things for this long, at least each once; then check.

        Raises:
            AssertionError: something is missing or wrong; the seed and the ends of the logs are printed.
        """
        replicas: list[Replica] = []
        try:
            homes = [self._home / f"replica{i}" for i in range(self._dose.replicas)]
            replicas = [Replica(self._captured, home, self._dose.snapshot) for home in homes]
            for thread in (*self._writers[1:], self._agent, *self._follow):
                thread.start()
            deadline = time.monotonic() + seconds
            self._break_things(replicas)
            while time.monotonic() < deadline:
                self._break_things(replicas)
            self._stop.set()
            for writer in self._writers:
                writer.join(PATIENCE_SECONDS)
                assert writer.fault is None, f"{writer.name}: {writer.fault}"
            self._drain(replicas)
            print("all has arrived", flush=True)
            return self._check(replicas)
        except BaseException:
            for program in (self._agent, *self._follow):
                print(f"--- {program.name} ended {dict(program.ends)}\n{program.tail()}")
            raise
        finally:
            self._stop.set()
            for thread in (self._agent, *self._follow):
                thread.end()
            for replica in replicas:
                replica.end()
            self._cluster.shutdown()

    # --- faults -------------------------------------------------------------------------------------------------------

    def _break_things(self, replicas: list[Replica]) -> None:
        """Do each of the faults, in any order."""
        killed: list[tuple[str, Callable[[], Any]]] = [(p.name, p.kill) for p in (self._agent, *self._follow)]
        faults = [
            *killed * self._dose.kills,
            ("broker", lambda: self._crash(self._kafka)),
            ("node", lambda: self._crash(self._node)),
            ("fold", self._fold),
            *((name, partial(self._crash, server)) for name, server in self._servers.items()),
        ]
        self._random.shuffle(faults)
        for name, fault in faults:
            time.sleep(self._random.uniform(0.2, self._dose.quiet_seconds))
            if not self._writers[0].is_alive() and self._random.random() < 0.5:
                # A table that comes later than the others.
                self._begin(self._writers[0])
            began = time.monotonic()
            fault()
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
            self._faults[name] += 1
            for writer in self._writers:
                assert writer.fault is None, f"{writer.name}: {writer.fault}"
            for replica in replicas:
                if self._random.random() < 0.7:
                    replica.deliver(self._archive, self._random)
        self._begin(self._writers[0])

    def _begin(self, writer: Writer) -> None:
        if writer.ident is None:
            writer.start()

    def _crash(self, server: EmbeddedServer) -> None:
        """Kill a server, and sometimes the program that uses it while it is down."""
        server.stop(signal.SIGKILL)
        time.sleep(self._random.random())
        for program in (self._agent, *self._follow):
            if self._random.random() < 0.4:
                program.kill()
        server.start()

    def _fold(self) -> None:
        """Maintain the lake while it is landed in."""
        for writer in self._writers:
            try:
                table = open_table(self._settings, f"{self._captured.keyspace}.{writer.table}")
            except WritetimeError:
                continue  # Nothing of it has landed yet.
            state.fold(table)
            state.compact(table)

    def _drain(self, replicas: list[Replica]) -> None:
        """Wait until everything has arrived."""
        self._captured.fill(2)
        self._captured.settle()
        self._until(lambda: len(list(self._node.cdc_raw.glob("*_cdc.idx"))) <= 2, "segments are released")
        for replica in replicas:
            replica.deliver(self._archive, self._random)
        for replica in replicas:
            self._until(replica.is_done, "the replicas' segments are published")
        self._agent.end()
        for replica in replicas:
            replica.end()
        names = [f"{self._captured.keyspace}.{writer.table}" for writer in self._writers]
        self._until(lambda: not any(not_landed(self._settings, name) for name in names), "all is landed")
        # Cells with short TTLs have expired.
        time.sleep(SHORT_TTL)
        for name in names:
            self._until(lambda name=name: self._is_followed(name), f"view and row events of {name} are those of now")
        for program in self._follow:
            program.end()
        for name in names:
            # The schemas that were announced last, though no change came after them.
            Landing(self._settings, name).drain()

    def _is_followed(self, name: str) -> bool:
        """Whether the maintained view, and the row events replayed, have the rows of now."""
        table = open_table(self._settings, name)
        wanted = list(views.virtual(table))
        shown = by_query(table.view.storage.address).select(wanted[0].column_names) if wanted else pa.table({})
        return unordered([shown]) == unordered(wanted) and replayed(table) == view_rows(wanted)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        assert wait_until(condition, PATIENCE_SECONDS), f"waited {PATIENCE_SECONDS:.0f} s in vain until {what}"

    # --- expectations -------------------------------------------------------------------------------------------------

    def _check(self, replicas: list[Replica]) -> Report:
        for program in (self._agent, *self._follow):
            assert program.ends[0] == 1, f"{program.name} ended {dict(program.ends)}"
        found = json.loads((self._home / "state/progress.json").read_text())
        for progress in (found, *(replica.progress for replica in replicas)):
            for segment in progress["segments"].values():
                assert segment["decoded"] == segment["published"]
                assert segment["reason"] is None
            assert progress["totals"]["segments_vanished"] == 0, progress["totals"]
        sources = {found["node"], *(replica.progress["node"] for replica in replicas)}
        assert len(sources) == 1 + len(replicas), "agents of several nodes are one source"
        for path in self._home.glob("**/aside/*.reason.json"):
            # No agent can read the changes of such a table. The database has none of them either.
            assert "the table was dropped before this agent read its schema" in path.read_text()
        rows = changes = 0
        for writer in self._writers:
            table = open_table(self._settings, f"{self._captured.keyspace}.{writer.table}")
            with answers.raw_session(self._node.port) as session:
                rows += assert_views(session, self._captured.schema(writer.table), table)
            files = table.changes.load().files
            changes += sum(file.rows for file in files)
            schema = change_schema(table.schema())
            landed = write_times(read_file(table.changes.storage, file.path, schema) for file in files)
            missing = list(writer.missing(landed))
            assert not missing, f"{writer.table}: {len(missing)} acknowledged writes are missing: {missing[:3]}"
        return Report(
            acknowledged=sum(len(writer.acknowledged) for writer in self._writers),
            unknown=sum(writer.unknown for writer in self._writers),
            refused=sum(writer.refused for writer in self._writers),
            alterations=sum(writer.alterations for writer in self._writers),
            rows=rows,
            changes=changes,
            segments=found["totals"]["segments"],
            delivered=sum(replica.progress["totals"]["segments"] for replica in replicas),
            faults=self._faults,
            agent_ends=self._agent.ends,
            follow_ends=sum((program.ends for program in self._follow), Counter()),
        )


def main() -> None:
    """Run once, on separate servers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long things are broken, at least")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="endtoend-"))
    store = ObjectStore(home / "store")
    settings = config.load(
        kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"},
        zookeeper={"hosts": f"127.0.0.1:{free_port()}"},
        embedded={"home": home, "kafka_controller_port": free_port()},
        follow={"share": True},
        lake={"path": f"s3://{BUCKET}/{uuid.uuid4().hex}", "storage_options": store.options},
    )
    # For the readers of other engines.
    os.environ |= store.options
    node, kafka = KilledServer(home / "node", "oa", **NODE), KafkaServer(settings)
    others = {"zookeeper": ZooKeeperServer(settings), "store": store}
    try:
        for server in (node, kafka, *others.values()):
            server.start()
        began = time.monotonic()
        run = EndToEnd(node, kafka, settings, home, options.seed, servers=others)
        report = run.run(options.seconds)
        print(f"seed {options.seed}, {time.monotonic() - began:.0f} s: {report}")
    except BaseException:
        print(f"what the servers and programs wrote is kept in {home}", flush=True)
        raise
    finally:
        for server in (node, kafka, *others.values()):
            server.stop()
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
