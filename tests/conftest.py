"""Shared by all tests: embedded servers and a Spark session, each started on first use."""

import gc
import logging
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from pyspark.sql import SparkSession
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support import cassandra_versions, scylla_server
from tests.support.parts import PARTS, of_other_parts
from tests.support.postgres import Postgres, running_postgres
from tests.support.servers import flushes_schemas, server_addresses, start
from tests.support.settings import write_settings
from writetime.clients import database
from writetime.clients.spark import spark_conf
from writetime.core.config import Settings
from writetime.core.logs import KAFKA_CLIENT, ZOOKEEPER_CLIENT
from writetime.ingest.topics import ensure_ingest_topics
from writetime.servers.process import free_port

# No test asserts a time. Each run has other inputs, of which few may be large or slow, which is not a fault either: a
# health check would fail by chance.
hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
hypothesis.settings.load_profile("tests")

# Folders whose tests share separate servers, or the files that these have written.
_WHOLE = {"capture", "cluster", "merge", "scylla_cdc", "security", "storage"}

# Folders and modules: those that take longest first, so that no process works alone at the end.
_LONGEST_FIRST = (
    "docs",
    "capture",
    "assets/test_demo",
    "cluster",
    "storage",
    "replay/test_faults",
    "http",
    "scylla_cdc",
    "assets",
    "faults",
    "follow",
    "deploy",
    "verify",
    "lake/test_histories",
    "security",
    "attack",
    "restore",
    "lake",
    "iceberg",
    "row_events",
    "ingest",
    "workqueue",
    "replay",
    "clients",
    "repository",
)

# Fixtures that start servers, or whose tests do. Others need one of them.
_SERVERS = {
    "cassandra",
    "histories",
    "kafka",
    "master",
    "node",
    "own_zookeeper",
    "postgres",
    "servers",
    "spark",
    "started",
    "store",
    "zookeeper",
}
# Fixtures that start servers for one folder of tests.
_OWN_SERVERS = {"secured", "written"}
# Folders whose branches are not measured in `make test`, like those of all tests that start servers: measuring takes a
# third more CPU time.
_NOT_COVERED = {"attack", "security", "storage"}


def pytest_configure(config: pytest.Config) -> None:
    """Turn off two parts of Java and one of Cassandra. Servers of tests run for a short time, so optimising costs more
    than it saves: a third of the CPU of Cassandra's start, and half of that of creating tables. The verification of
    classes takes a tenth of the start of Cassandra or Spark; the jars are verified by their digests. Cassandra flushes
    its tables of schemas at each change, which takes two thirds of the CPU of creating a table, and most of the time.
    Benchmarks import this module, and keep all three.
    """
    no_proof = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    os.environ.setdefault("JDK_JAVA_OPTIONS", f"-XX:TieredStopAtLevel=1 {no_proof} {flushes_schemas(False)}")
    # Collection imports a million objects, and frees few of them. With xdist, the first process collects no tests.
    if config.getoption("dist", "no") == "no":
        gc.disable()
    if config.getoption("--long"):
        os.environ["LONG_TESTS"] = "1"
        config.option.timeout = 3600
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))
    os.environ["WRITETIME_CONFIG"] = str(Path(__file__).with_name("writetime.toml"))
    config.addinivalue_line(
        "markers", "cassandra_only(reason): needs what only Apache Cassandra has; deselected with --scylla"
    )
    config.addinivalue_line(
        "markers", "from_cassandra_5(reason): needs what 4.0 and 4.1 lack; deselected with --cassandra 4.0 or 4.1"
    )
    config.addinivalue_line("markers", "from_cassandra_6(reason): needs --cassandra 6.0")
    config.addinivalue_line("markers", "long_only(reason): takes minutes of CPU; deselected without --long")
    config.addinivalue_line("markers", "slow: of a module that takes 1.5 to 5 CPU seconds; not part of `make check`")
    config.addinivalue_line("markers", "long: of a module that takes more than 5 CPU seconds; see --part")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let recordings of another ScyllaDB be compared, too, and let tests run against a ScyllaDB that runs already."""
    parser.addoption(
        "--recorded",
        action="append",
        default=[],
        metavar="DIR",
        help="also compare the recordings of a ScyllaDB in this folder (see tests/recorded)",
    )
    parser.addoption("--long", action="store_true", help="run long tests at their full length")
    parser.addoption(
        "--part",
        type=lambda number: int(number, 0),
        metavar="NUMBER",
        help=f"run one of {PARTS} parts of the modules with long tests: the one of this number modulo {PARTS}",
    )
    parser.addoption("--servers", metavar="DIR", help="use the servers that run in this folder, and leave them running")
    parser.addoption("--without-servers", action="store_true", help="run tests that start no server")
    parser.addoption(
        "--without-shared-servers",
        action="store_true",
        help="run the same, and tests/security and tests/storage, which start their own",
    )
    parser.addoption(
        "--cassandra",
        choices=cassandra_versions.VERSIONS,
        default=cassandra_versions.EMBEDDED,
        help="let embedded nodes be of this version",
    )
    parser.addoption(
        "--iceberg-engines",
        type=lambda folder: Path(folder).resolve(),
        metavar="DIR",
        help="let more engines read Iceberg tables, whose packages are in this folder (make test-iceberg)",
    )
    scylla = parser.getgroup("scylla", "a running ScyllaDB (see tests/scylla)")
    scylla.addoption("--scylla", metavar="HOST:PORT", help="use this ScyllaDB instead of an embedded Cassandra")
    scylla.addoption("--scylla-login", metavar="NAME:PASSWORD", help="log in as this superuser")
    scylla.addoption("--scylla-tablets", choices=["on", "off"], default="off", help="whether keyspaces use tablets")
    scylla.addoption("--scylla-data", metavar="DIR", help="data folders of all nodes, with commas, for snapshots")
    scylla.addoption("--scylla-nodetool", metavar="COMMAND", help="nodetools of all nodes, with commas, for snapshots")
    scylla.addoption(
        "--scylla-restart", metavar="COMMAND", help="kill this ScyllaDB (SIGKILL) and start it, for moves to it"
    )
    scylla.addoption("--scylla-sstable", metavar="COMMAND", help="the tool `scylla sstable`, for written SSTables")


class Scheduling(LoadScopeScheduling):
    """Gives each module to one process, or each whole folder that shares more than all tests do. (Groups by marks, as
    xdist 3.8 has them, are lost on pytest 9.2.) A test whose process ends has failed, and is not run again: a test that
    hangs would end the next process, too.
    """

    def _split_scope(self, nodeid: str) -> str:
        folder = nodeid.split("/")[1]
        is_whole = folder in _WHOLE and not self.config.getoption("--without-servers")
        return folder if is_whole else nodeid.partition("::")[0]

    def remove_node(self, node: WorkerController) -> str | None:
        for tests in self.assigned_work[node].values():
            for test in tests:
                if not tests[test]:
                    tests[test] = True
                    super().remove_node(node)
                    return test
        return super().remove_node(node)


class FailuresAtOnce:
    """Prints each test when it fails, because a run of all tests takes more than an hour."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name of a failed test, and its last line."""
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal:
            last = (report.longreprtext.strip().splitlines() or [""])[-1]
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}): {last}")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Print which long tests run."""
    number = config.getoption("--part")
    return None if number is None else f"long tests: part {number % PARTS} of {PARTS} (make test PART=all runs all)"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Let `pytest -n` keep tests together that share servers."""
    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the folders of tests in order, and leave out those that lack their servers, by the options."""
    if (number := config.getoption("--part")) is not None:
        others = of_other_parts([_module(item) for item in items if _is_long(item)], number)
        _leave_out(config, items, lambda item: _is_long(item) and _module(item) in others)
    if config.getoption("--scylla"):
        _leave_out(config, items, lambda item: item.get_closest_marker("cassandra_only") is not None)
    version = str(config.getoption("--cassandra"))
    if cassandra_versions.is_older(version):
        _leave_out(config, items, lambda item: item.get_closest_marker("from_cassandra_5") is not None)
    if version != "6.0":
        _leave_out(config, items, lambda item: item.get_closest_marker("from_cassandra_6") is not None)
    if not config.getoption("--long"):
        _leave_out(config, items, lambda item: item.get_closest_marker("long_only") is not None)
    if config.getoption("--without-servers"):
        _leave_out(config, items, lambda item: _starts(item, _SERVERS | _OWN_SERVERS))
    if config.getoption("--without-shared-servers"):
        _leave_out(config, items, lambda item: _starts(item, _SERVERS))
    if config.pluginmanager.hasplugin("_cov") and not config.getoption("--without-shared-servers"):
        for item in items:
            if _starts(item, _SERVERS | _OWN_SERVERS) or item.nodeid.split("/")[1] in _NOT_COVERED:
                item.add_marker("no_cover")
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    """Let Python collect garbage again, except among the modules and tests, which stay until the end."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup() -> None:
    """Undo what commands leave behind in this process. Dagster maps SIGTERM to the handler of Ctrl-C, which processes
    of xdist ignore: programs that later tests start would inherit that, and not end. And definitions would be loaded
    with the tables of the command. Commands of Writetime silence the clients of servers, and services log more: a later
    test would see other logs than alone. A service that has ended still listens for signals: it would end this process
    at the second one of a later test.
    """
    signal.set_wakeup_fd(-1)
    for name in ("cassandra", "writetime", KAFKA_CLIENT, ZOOKEEPER_CLIENT):
        logging.getLogger(name).setLevel(logging.NOTSET)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if context := sys.modules.get("dagster._core.definitions.definitions_load_context"):
        context.DefinitionsLoadContext._instance = None


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _place(item: pytest.Item) -> int:
    module = _module(item).removeprefix("tests/").removesuffix(".py")
    found = [_LONGEST_FIRST.index(part) for part in (module, module.split("/")[0]) if part in _LONGEST_FIRST]
    return min(found, default=len(_LONGEST_FIRST))


def _leave_out(config: pytest.Config, items: list[pytest.Item], which: Callable[[pytest.Item], bool]) -> None:
    left_out = [item for item in items if which(item)]
    items[:] = [item for item in items if not which(item)]
    config.hook.pytest_deselected(items=left_out)


def _starts(item: pytest.Item, servers: set[str]) -> bool:
    return isinstance(item, pytest.Function) and not servers.isdisjoint(item.fixturenames)


@contextmanager
def new_keyspace(config: pytest.Config, settings: Settings) -> Iterator[None]:
    """Create the keyspace of settings, before schema files are applied to it, where it needs options that they do not
    have: in ScyllaDB, whether it uses tablets. Such a keyspace is dropped at the end."""
    if not config.getoption("--scylla"):
        yield
        return
    scylla_server.create_keyspace(settings, tablets=scylla_server.uses_tablets(config))
    try:
        yield
    finally:
        scylla_server.drop_keyspace(settings)


@pytest.fixture(scope="session")
def is_long(pytestconfig: pytest.Config) -> bool:
    """Whether long tests of faults run at their full length, as by `make test-long`."""
    return bool(pytestconfig.getoption("--long"))


@pytest.fixture(scope="session", autouse=True)
def cassandra_version(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The version of Cassandra that embedded nodes of this session have."""
    version = str(pytestconfig.getoption("--cassandra"))
    cassandra_versions.use(version, tmp_path_factory.mktemp("cassandra"))
    return version


@pytest.fixture(scope="session")
def make_keyspace(pytestconfig: pytest.Config) -> Iterator[Callable[[Settings], None]]:
    """Create keyspaces that last as long as the session."""
    with ExitStack() as made:
        yield lambda settings: made.enter_context(new_keyspace(pytestconfig, settings))


@pytest.fixture(scope="session")
def addresses(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of servers that belong to this test session alone; with `--scylla`, the database does not. The fixtures
    `cassandra`, `kafka` and `zookeeper` start them.
    """
    kept = pytestconfig.getoption("--servers")
    home = tmp_path_factory.mktemp("servers")
    for name in [n for n in os.environ if n.startswith("WRITETIME_") and n != "WRITETIME_CACHE"]:
        del os.environ[name]
    os.environ["WRITETIME_CONFIG"] = str(home / "none.toml")
    Path(os.environ["WRITETIME_CONFIG"]).write_text("")
    address = pytestconfig.getoption("--scylla")
    own = scylla_server.cassandra_section(address, pytestconfig.getoption("--scylla-login")) if address else None
    # Each process of xdist has its own.
    folder = Path(kept).resolve() / os.environ.get("PYTEST_XDIST_WORKER", "main") if kept else home
    folder.mkdir(parents=True, exist_ok=True)
    with server_addresses(folder, own, keep=bool(kept)) as settings:
        yield settings


@pytest.fixture(scope="session")
def zookeeper(addresses: Settings) -> Settings:
    """Settings of a ZooKeeper that runs."""
    start(addresses, "zookeeper")
    return addresses


@pytest.fixture(scope="session")
def kafka(addresses: Settings) -> Settings:
    """Settings of a broker that runs."""
    start(addresses, "kafka")
    return addresses


@pytest.fixture(scope="session")
def cassandra(addresses: Settings, make_keyspace: Callable[[Settings], None]) -> Settings:
    """Settings of a database that runs, with the keyspace and its tables."""
    start(addresses, "cassandra")
    make_keyspace(addresses)
    database.apply_schema(addresses)
    return addresses


@pytest.fixture(scope="session")
def _launched(addresses: Settings) -> None:
    """Start all at once: one after the other takes longer."""
    start(addresses, "zookeeper", "kafka", "cassandra")


@pytest.fixture(scope="session")
def server_settings(_launched: None, zookeeper: Settings, kafka: Settings, cassandra: Settings) -> Settings:
    """Settings of all three, which run."""
    return cassandra


@pytest.fixture(scope="session")
def spark(addresses: Settings) -> Iterator[SparkSession]:
    """The one Spark session of the tests; assets use it because it is active."""
    builder = SparkSession.builder
    for name, value in spark_conf(addresses).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A server of Postgres of this test alone."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def ingest_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the schema files that ingest needs."""
    folder = tmp_path_factory.mktemp("cql")
    for name in ("001_keyspace.cql", "002_user_events.cql"):
        shutil.copy(database.schema_folder() / name, folder)
    return folder


@pytest.fixture
def settings(
    pytestconfig: pytest.Config,
    server_settings: Settings,
    ingest_schema: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Settings]:
    """Settings with a keyspace, topics, a consumer group and a lake that no other test uses.

    The keyspace has the tables of ingest; those of queues are there with `queue_tables`, as few tests need them and
    each costs a tenth of a second. The settings file has the same values, so that resources and programs that a test
    starts have them too.
    """
    name = f"t{uuid.uuid4().hex[:12]}"
    ingest = server_settings.ingest.model_copy(
        update={
            "port": free_port(),
            "topic": name,
            "dead_letter_topic": f"{name}.dead",
            "group": f"{name}-sink",
            "session_timeout_seconds": 3.0,
        }
    )
    own = server_settings.model_copy(
        update={
            "ingest": ingest,
            "cassandra": server_settings.cassandra.model_copy(update={"keyspace": name}),
            # Each bucket costs a task, a commit of a backfill, and a query of `verify`.
            "lake": server_settings.lake.model_copy(update={"path": str(tmp_path / "lake"), "buckets": 2}),
            "alerts": server_settings.alerts.model_copy(update={"reports": tmp_path / "reports"}),
        }
    )
    with new_keyspace(pytestconfig, own):
        with monkeypatch.context() as patch:
            patch.setattr(database, "schema_folder", lambda: ingest_schema)
            database.apply_schema(own)
        ensure_ingest_topics(own)
        write_settings(own, tmp_path / "writetime.toml")
        monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
        yield own


@pytest.fixture
def queue_tables(settings: Settings) -> None:
    """Put the tables of queues into the keyspace of `settings`."""
    database.apply_schema(settings)
