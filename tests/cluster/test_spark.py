"""The lake's work on a Spark cluster: snapshots of three nodes and the lake are in an object store, and the tasks run
where none of the driver's files are. And its work by Spark Connect."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from tests.cluster.lake_job import REASON
from tests.cluster.servers import ADDRESSES, REPLICATION, Servers, session_at
from tests.support.lake_answers import cql_rows, unordered
from tests.support.lake_views import compacted
from tests.support.made import write
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.published import send
from tests.support.settings import write_settings
from tests.support.spark_cluster import SparkConnect, SparkMaster, SparkWorker
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.clients.spark import spark_conf
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake.table import open_table
from writetime.schema.system import read_schema
from writetime.verify.comparison import verify

_ROWS = 500
KEYSPACE = "shop"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    server = ObjectStore(tmp_path_factory.mktemp("store"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkMaster]:
    """A master with two workers, each with one core."""
    home = tmp_path_factory.mktemp("spark")
    found = SparkMaster(home)
    workers = [SparkWorker(home, number, found) for number in range(2)]
    try:
        found.start()
        for worker in workers:
            worker.launch()
        for worker in workers:
            worker.wait_ready()
        yield found
    finally:
        for server in (*workers, found):
            server.stop()


def cluster_settings(settings: Settings, store: ObjectStore, master: SparkMaster) -> Settings:
    """The guide's settings file."""
    conf = {
        "spark.pyspark.python": sys.executable,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        # Until both workers are there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.cores.max": "2",
        # Where the package is, as it is not installed.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT / "platform"), str(ROOT)]),
    }
    # Snapshots are read by another client than the lake, which takes these from the environment.
    conf |= {f"spark.executorEnv.{name}": value for name, value in store.options.items() if name.startswith("AWS_")}
    return settings.model_copy(
        update={
            "spark": settings.spark.model_validate({"master": master.url, "conf": conf}),
            "lake": settings.lake.model_validate(
                {"path": f"s3://{BUCKET}/cluster", "storage_options": store.options, "buckets": 4}
            ),
        }
    )


def make_orders(settings: Settings) -> str:
    """A table with rows, of which those of one partition are deleted."""
    table = f"{KEYSPACE}.orders"
    with session_at(settings) as session:
        session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {REPLICATION}")
        session.execute(f"CREATE TABLE {table} (id int, n int, v text, PRIMARY KEY (id, n))")
        insert = session.prepare(f"INSERT INTO {table} (id, n, v) VALUES (?, ?, ?)")
        for i in range(_ROWS):
            session.execute(insert, (i // 5, i, f"v{i}"))
        session.execute(f"DELETE FROM {table} WHERE id = 7")
    return table


def snapshots_in_the_store(settings: Settings, store: ObjectStore, table: str) -> list[str]:
    """The addresses of the snapshots of all nodes."""
    addresses = []
    for address in ADDRESSES:
        capture = settings.capture.model_copy(update={"node": address})
        for folder in take_snapshot(settings.model_copy(update={"capture": capture}), table, "now"):
            there = f"{BUCKET}/snapshots/{address}"
            fs.copy_files(str(folder), there, destination_filesystem=store.filesystem())
            addresses.append(f"s3://{there}?endpoint_override={store.host}&scheme=http")
    return addresses


def run_lake_job(config: Path, options: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    """Bring a table into the lake by Spark, in a separate process; return its report."""
    environment = {
        **os.environ,
        **options,
        "WRITETIME_CONFIG": str(config),
        # The variables that tests have set for a session on this machine.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("PYSPARK_PYTHON", None)
    command = [sys.executable, "-m", "tests.cluster.lake_job", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long_only("starts three nodes and three brokers")
def test_snapshots_of_three_nodes_by_two_workers(
    servers: Servers, store: ObjectStore, master: SparkMaster, tmp_path: Path
) -> None:
    settings = cluster_settings(servers.settings, store, master)
    table = make_orders(settings)
    addresses = snapshots_in_the_store(settings, store, table)
    write_settings(settings, tmp_path / "writetime.toml")
    report = run_lake_job(tmp_path / "writetime.toml", store.options, table, *addresses)
    assert len(report["executors"]) == 2
    assert report["rows"] == report["events"] == _ROWS - 5
    assert report["changes"] >= 3 * (_ROWS - 5)
    proof = verify(settings, open_table(settings, table))
    assert proof.proven
    assert not proof.differences


def test_a_folder_of_the_driver_is_not_a_lake() -> None:
    with pytest.raises(WritetimeError, match=r"lake\.path is \.writetime/lake, below the working folder"):
        spark_conf(config.load(spark={"master": "spark://master:7077"}, lake={}))


@pytest.fixture
def connect_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkConnect]:
    # Where the package is, as it is not installed.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "platform"), str(ROOT)]))
    server = SparkConnect(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.long
def test_by_spark_connect(settings: Settings, connect_server: SparkConnect, tmp_path: Path) -> None:
    """A table lands and is backfilled, folded and shown by Connect, with the same result as by a classic session."""
    table = f"{settings.cassandra.keyspace}.items"
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {table} (id int, n int, v text, w int, PRIMARY KEY (id, n))")
        for i in range(20):
            session.execute(f"INSERT INTO {table} (id, n, v) VALUES ({i}, {i}, 'v{i}')")
        session.execute(f"DELETE FROM {table} WHERE id = 7")
        schema, wanted = read_schema(session, table), cql_rows(session, read_schema(session, table))
    folders = [str(folder) for folder in take_snapshot(settings, table, "now")]
    send(settings, schema, *(write(id_, 0, 5, v="landed") for id_ in range(100, 103)))
    wanted += [{"id": id_, "n": 0, "v": "landed", "w": None} for id_ in range(100, 103)]
    reports, views, events = {}, {}, {}
    for name, spark in {"connect": {"remote": connect_server.url}, "classic": {"master": "local[2]"}}.items():
        lake = settings.lake.model_copy(update={"path": str(tmp_path / name)})
        own = settings.model_copy(update={"spark": settings.spark.model_validate(spark), "lake": lake})
        write_settings(own, tmp_path / f"{name}.toml")
        reports[name] = run_lake_job(tmp_path / f"{name}.toml", {}, table, *folders)
        found = open_table(own, table)
        views[name] = unordered(compacted(found))
        events[name] = unordered([found.row_events.read(["kind", "before", "after"])])
    assert views["connect"] == views["classic"] == sorted(map(repr, wanted))
    assert events["connect"] == events["classic"]
    for report in reports.values():
        assert report.pop("executors")
    assert reports["connect"] == reports["classic"]
    known = {"landed": 3, "tasks_at_once": 2, "rows": len(wanted), "error": ["Transient", REASON]}
    assert reports["connect"] | known == reports["connect"]


def test_the_session_of_a_connect_server() -> None:
    """It gets the options that can be set there."""
    settings = config.load(
        spark={"remote": "sc://spark:15002/;token=hush", "conf": {"spark.sql.ansi.enabled": "false"}}
    )
    assert "hush" not in repr(settings)
    with pytest.raises(WritetimeError, match=r"the tasks of spark\.remote run elsewhere"):
        spark_conf(settings)
    conf = spark_conf(settings.model_copy(update={"lake": settings.lake.model_copy(update={"path": "/lake"})}))
    assert conf["spark.remote"] == "sc://spark:15002/;token=hush"
    assert (conf["spark.sql.session.timeZone"], conf["spark.sql.ansi.enabled"]) == ("UTC", "false")
    assert "spark.master" not in conf
    with pytest.raises(WritetimeError, match=r"spark\.remote: .*it is not an sc:// address"):
        config.load(spark={"remote": "spark://master:7077"})
