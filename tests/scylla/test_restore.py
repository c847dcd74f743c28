"""Tables of a running ScyllaDB, restored into others, from their snapshots or CDC logs in a lake.

Oracle: ScyllaDB's rows, write times and TTLs by CQL, at the instant or in the original table.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest
from cassandra.cluster import Session

from tests.scylla.following import captured, settings_for
from tests.scylla.node import Node
from tests.scylla.statements import LiveGenerator, StoredGenerator, table_options, with_options
from tests.scylla.workload import write_to
from tests.support import answers
from tests.support.generate import SEED
from tests.support.history import PHASES, instant_after, with_history
from tests.support.scylla_server import new_name
from tests.support.settings import write_settings
from tests.support.timed_writes import COLUMNS, Answers
from tests.support.waiting import wait_for
from writetime.core.config import Settings
from writetime.lake.backfill import backfill, complete_schema, find_snapshots
from writetime.lake.table import LakeTable, create_table
from writetime.restore.into import IntoReport, restore_into
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.scylla_cdc.log import SUFFIX

SEEDS = range(12)
# Seconds between the answers of two tables.
APART_SECONDS = 120
KILLS = 4
pytestmark = pytest.mark.usefixtures("types")

Snapshot = Callable[[Settings, str, str], list[Path]]


@pytest.fixture
def settings(live: Settings, tmp_path: Path) -> Settings:
    """Settings with a lake for one test."""
    lake = live.lake.model_copy(update={"path": str(tmp_path / "lake"), "buckets": 4})
    return live.model_copy(update={"lake": lake})


@pytest.fixture
def snapshot(session: Session, nodes: list[Node]) -> Snapshot:
    """Take snapshots of a table under a tag."""
    return lambda _, table, tag: [node.snapshot(read_schema(session, table), tag) for node in nodes]


def in_lake(settings: Settings, folders: Iterable[Path]) -> LakeTable:
    found = complete_schema(settings, find_snapshots([str(folder) for folder in folders]))
    table = create_table(settings, found.schema)
    assert list(backfill(table, found))
    return table


def assert_proven(report: IntoReport) -> None:
    assert report.comparison is not None, f"{report.remaining} have not loaded their SSTables"
    assert report.comparison.proven, report.comparison.differences[:3]


def compact(nodes: Sequence[Node], table: str) -> None:
    keyspace, _, name = table.partition(".")
    for node in nodes:
        node.run("flush", keyspace, name)
        node.run("compact", keyspace, name)


def test_as_of_instants(
    settings: Settings, session: Session, nodes: list[Node], snapshot: Snapshot, tmp_path: Path
) -> None:
    lake, wanted = with_history(settings, session, new_name("h"), snapshot=snapshot)
    for phase in range(PHASES):
        other = f"{settings.cassandra.keyspace}.{new_name('as_of')}"
        # Deletions are dropped at the first compaction.
        session.execute(f"CREATE TABLE {other} {COLUMNS} AND gc_grace_seconds = 0")
        report = restore_into(settings, lake, str(tmp_path / f"out{phase}"), other, instant_after(phase))
        assert_proven(report)
        Answers.of(session, other).assert_same(wanted[phase])
        compact(nodes, other)
        Answers.of(session, other).assert_same(wanted[phase])


def assert_same_answers(raw: Session, one: TableSchema, other: TableSchema) -> None:
    """Compare two tables of the same columns, whose cells have not expired meanwhile."""
    for _ in range(2):
        assert answers.rows(raw, one) == answers.rows(raw, other)
    pairs = zip(*(answers.write_times(raw, schema) for schema in (one, other)), strict=True)
    for found, wanted in pairs:
        for name, value in found.items():
            if name.startswith("ttl ") and value is not None:
                expected = wanted[name]
                assert expected is not None
                assert abs(value - expected) < APART_SECONDS
            else:
                assert value == wanted[name], name


@pytest.mark.parametrize("seed", SEEDS)
def test_random_tables(
    settings: Settings,
    session: Session,
    raw: Session,
    nodes: list[Node],
    snapshot: Snapshot,
    tmp_path: Path,
    seed: int,
) -> None:
    """Cells and tombstones have few write times, also negative ones, so that ties are frequent."""
    generator = StoredGenerator(1000 * SEED + 500 + seed)
    made = generator.live_schema(settings.cassandra.keyspace, new_name("r"), regulars=generator.random.randint(1, 6))
    options = table_options(generator.random)
    session.execute(with_options(generator.renamed(made).create_statement(), options), timeout=120)
    schema = read_schema(session, made.full_name)
    write_to(raw, generator, schema, 200)
    lake = in_lake(settings, snapshot(settings, schema.full_name, "live"))
    other = f"{schema.full_name}_copy"
    assert_proven(restore_into(settings, lake, str(tmp_path / "out"), other))
    copied = read_schema(session, other)
    assert_same_answers(raw, schema, copied)
    compact(nodes, other)
    assert_same_answers(raw, schema, copied)


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("number", range(3))
def test_tables_whose_log_was_captured(
    live: Settings, session: Session, raw: Session, tmp_path: Path, number: int
) -> None:
    generator = LiveGenerator(1000 * SEED + 900 + number)
    made = generator.live_schema(live.cassandra.keyspace, new_name("g"), regulars=3)
    session.execute(with_options(made.create_statement(), ["cdc = {'enabled': true}"]), timeout=120)
    schema = read_schema(session, made.full_name)
    settings = settings_for(live, schema.full_name, tmp_path)
    lake = captured(settings, schema.full_name, lambda: write_to(raw, generator, schema, 300))
    other = f"{schema.full_name}_copy"
    assert_proven(restore_into(settings, lake, str(tmp_path / "out"), other))
    assert_same_answers(raw, schema, read_schema(session, other))


def test_counters(settings: Settings, session: Session, nodes: list[Node], snapshot: Snapshot, tmp_path: Path) -> None:
    """They are restored, and count on."""
    table = f"{settings.cassandra.keyspace}.{new_name('c')}"
    session.execute(f"CREATE TABLE {table} (k int, c int, s counter STATIC, n counter, PRIMARY KEY (k, c))")
    chooser = random.Random(SEED)
    for _ in range(300):
        k, c, step = chooser.randrange(10), chooser.randrange(5), chooser.randrange(-5, 9)
        session.execute(f"UPDATE {table} SET n = n + {step}, s = s + 1 WHERE k = {k} AND c = {c}")
    session.execute(f"DELETE FROM {table} WHERE k = 3")
    session.execute(f"DELETE n FROM {table} WHERE k = 4 AND c = 1")
    lake = in_lake(settings, snapshot(settings, table, "counted"))
    other = f"{table}_copy"
    assert_proven(restore_into(settings, lake, str(tmp_path / "out"), other))

    def rows(name: str) -> list[tuple[int, ...]]:
        return [tuple(row) for row in session.execute(f"SELECT * FROM {name}")]

    assert len(rows(table)) > 20
    assert rows(other) == rows(table)
    for name in (table, other):
        session.execute(f"UPDATE {name} SET n = n + 100, s = s - 1 WHERE k = 1 AND c = 1")
    assert rows(other) == rows(table)
    compact(nodes, other)
    assert rows(other) == rows(table)


def test_views_and_indexes_get_the_rows(
    settings: Settings, session: Session, snapshot: Snapshot, tmp_path: Path
) -> None:
    lake, wanted = with_history(settings, session, new_name("v"), snapshot=snapshot)
    other = f"{settings.cassandra.keyspace}.{new_name('viewed')}"
    session.execute(f"CREATE TABLE {other} {COLUMNS}")
    session.execute(
        f"CREATE MATERIALIZED VIEW {other}_by_v AS SELECT k, c, d, v, w FROM {other} WHERE k IS NOT NULL AND "
        "c IS NOT NULL AND d IS NOT NULL AND v IS NOT NULL PRIMARY KEY (v, k, c, d)"
    )
    session.execute(f"CREATE INDEX ON {other} (w)")
    assert_proven(restore_into(settings, lake, str(tmp_path / "out"), other))
    Answers.of(session, other).assert_same(wanted[-1])
    base = [(row.k, row.c, row.d, row.v, row.w) for row in session.execute(f"SELECT * FROM {other}")]

    def viewed() -> list[tuple[object, ...]]:
        return [(r.k, r.c, r.d, r.v, r.w) for r in session.execute(f"SELECT k, c, d, v, w FROM {other}_by_v")]

    wait_for(lambda: sorted(viewed()) == sorted(row for row in base if row[3] is not None))
    for w in {row[4] for row in base} - {None}:

        def indexed(value: str) -> list[tuple[object, ...]]:
            found = session.execute(f"SELECT * FROM {other} WHERE w = '{value}'")
            return sorted((r.k, r.c, r.d) for r in found)

        wait_for(partial(lambda value: indexed(value) == sorted(r[:3] for r in base if r[4] == value), w))


def test_a_table_with_a_cdc_log(
    settings: Settings,
    session: Session,
    snapshot: Snapshot,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An import is not in the log, and its write times are older than the log."""
    lake, wanted = with_history(settings, session, new_name("l"), snapshot=snapshot)
    other = f"{settings.cassandra.keyspace}.{new_name('logged')}"
    session.execute(f"CREATE TABLE {other} {COLUMNS} AND cdc = {{'enabled': true}}")
    assert_proven(restore_into(settings, lake, str(tmp_path / "out"), other))
    Answers.of(session, other).assert_same(wanted[-1])
    assert f"{other} is captured, and an import is not in its CDC log" in caplog.text
    assert session.execute(f"SELECT * FROM {other}{SUFFIX}").one() is None


def test_killed_at_any_time(
    settings: Settings,
    session: Session,
    snapshot: Snapshot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program is killed while it writes, while the node loads, and while it compares; the last run ends."""
    lake, wanted = with_history(settings, session, new_name("k"), seed=50, snapshot=snapshot)
    write_settings(settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    other = f"{settings.cassandra.keyspace}.{new_name('killed')}"

    def program(name: str, into: str) -> list[str]:
        arguments = ["restore", lake.name, "--to", str(tmp_path / name), "--into", into]
        return [sys.executable, "-m", "writetime", *arguments, "--as-of", str(instant_after(1))]

    # The first copy shows how long a run takes.
    began = time.monotonic()
    subprocess.run(program("first", f"{other}_first"), check=True)
    seconds = time.monotonic() - began
    chooser = random.Random(str(seconds))
    for _ in range(KILLS):
        running = subprocess.Popen(program("out", other), start_new_session=True, stderr=subprocess.PIPE)
        time.sleep(chooser.random() * seconds)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    done = subprocess.run(program("out", other), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(wanted[1].rows)} rows in the lake; 0 differ" in done.stderr
    Answers.of(session, other).assert_same(wanted[1])
