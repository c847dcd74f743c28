"""Restores into tables of a node, as of instants of a history. Oracle: the answers of CQL at these instants, with write
times and TTLs.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from cassandra.cluster import Session
from click.testing import CliRunner, Result

from tests.support.history import PHASES, instant_after, with_history
from tests.support.loader import stream
from tests.support.made import SCHEMA, add, write
from tests.support.timed_writes import COLUMNS, Answers
from writetime.bulk_load import node_import
from writetime.bulk_load.sstables import read_manifest
from writetime.bulk_load.target import require_importable, require_merge
from writetime.cli.main import main
from writetime.clients import node_snapshots
from writetime.clients.database import connect
from writetime.clients.scylla_node import is_scylla
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake.table import LakeTable, create_table
from writetime.restore import into as module
from writetime.restore.into import IntoReport, restore_into
from writetime.restore.to_folder import restore
from writetime.runtime.nodetool import nodetool
from writetime.schema.cql import parse_table

pytestmark = pytest.mark.long


@pytest.fixture
def session(settings: Settings) -> Iterator[Session]:
    with connect(settings) as opened:
        yield opened


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def test_as_of_instants(settings: Settings, session: Session, tmp_path: Path) -> None:
    keyspace = settings.cassandra.keyspace
    lake, wanted = with_history(settings, session, "original")
    assert all(one.rows != other.rows for one, other in pairwise(wanted))
    _, port = node_snapshots.local_node(session)
    for phase in range(PHASES):
        other = f"{keyspace}.as_of_{phase}"
        # Deletions are dropped at the first compaction.
        session.execute(f"CREATE TABLE {other} {COLUMNS} AND gc_grace_seconds = 0")
        arguments = ["restore", lake.name, "--to", str(tmp_path / f"out{phase}"), "--into", other]
        done = run(*arguments, "--as-of", str(instant_after(phase)))
        assert done.exit_code == 0, done.output
        assert f"{other}: {len(wanted[phase].rows)} rows in the lake; 0 differ\n" in done.stderr
        Answers.of(session, other).assert_same(wanted[phase])
        nodetool(port, "compact", keyspace, f"as_of_{phase}")
        Answers.of(session, other).assert_same(wanted[phase])


@pytest.mark.from_cassandra_5("the jars of others lack the driver that sstableloader uses")
def test_streamed_by_sstableloader(
    settings: Settings, session: Session, cassandra_version: str, tmp_path: Path
) -> None:
    keyspace = settings.cassandra.keyspace
    lake, wanted = with_history(settings, session, "to_stream")
    session.execute(f"CREATE TABLE {keyspace}.streamed {COLUMNS}")
    folder = tmp_path / keyspace / "streamed"
    restore(lake, str(folder))
    stream(folder, Path(settings.embedded.home) / "cassandra", settings.cassandra.port, cassandra_version)
    Answers.of(session, f"{keyspace}.streamed").assert_same(wanted[-1])


@pytest.fixture
def lake(settings: Settings) -> LakeTable:
    """A table of the lake with 100 rows, written at 100 to 199 s after 1970."""
    table = create_table(settings, SCHEMA)
    add(table, [write(i, n, (100 + 2 * i + n) * 1_000_000, v=f"v{i}", w=i) for i in range(50) for n in range(2)], 0)
    return table


@pytest.fixture
def into(settings: Settings, lake: LakeTable, tmp_path: Path) -> Callable[..., IntoReport]:
    """Restore into a table of the keyspace, `other` by default, as of 150 s after 1970."""

    def restored(name: str = "other", *, merge: bool = False) -> IntoReport:
        table = f"{settings.cassandra.keyspace}.{name}"
        return restore_into(settings, lake, str(tmp_path / f"out{int(merge)}"), table, 150_000_000, merge=merge)

    return restored


def test_the_table_is_created_and_a_repeated_run_only_compares(
    settings: Settings, session: Session, into: Callable[..., IntoReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = into()
    assert report.comparison is not None
    assert report.comparison.proven
    assert report.comparison.rows == 51
    assert session.execute(f"SELECT count(*) FROM {settings.cassandra.keyspace}.other").one()[0] == 51
    monkeypatch.setattr(node_import, "import_node", None)
    assert into() == report


def test_what_differs_is_found(settings: Settings, session: Session, into: Callable[..., IntoReport]) -> None:
    """A cell with another value, write time or TTL, a row that is missing, and one that is more."""
    into()
    table = f"{settings.cassandra.keyspace}.other"
    session.execute(f"INSERT INTO {table} (id, n, v) VALUES (1, 0, 'other') USING TIMESTAMP 102000001")
    session.execute(f"UPDATE {table} USING TIMESTAMP 104000001 SET v = 'v2' WHERE id = 2 AND n = 0")
    session.execute(f"UPDATE {table} USING TIMESTAMP 106000000 AND TTL 100000 SET v = 'v3' WHERE id = 3 AND n = 0")
    session.execute(f"DELETE FROM {table} WHERE id = 4 AND n = 1")
    session.execute(f"INSERT INTO {table} (id, n, v) VALUES (100, 0, 'more')")
    report = into().comparison
    assert report is not None
    assert not report.proven
    assert report.differing == len(report.differences) == 5
    found = {(d.lake or d.database or {})["id"]: d for d in report.differences}
    assert found.keys() == {1, 2, 3, 4, 100}
    assert found[4].database is None
    assert found[100].lake is None
    expiry = pytest.approx(time.time() + 100000, abs=100)
    for each, name, value in ((1, "v", "other"), (2, "writetime(v)", 104000001), (3, "expiry(v)", expiry)):
        database, in_lake = found[each].database, found[each].lake
        assert database is not None
        assert in_lake is not None
        assert database[name] == value
        assert in_lake[name] != value


def test_into_a_table_with_rows(settings: Settings, session: Session, into: Callable[..., IntoReport]) -> None:
    table = f"{settings.cassandra.keyspace}.other"
    session.execute(f"CREATE TABLE {table} (id int, n int, v text, w int, PRIMARY KEY (id, n))")
    session.execute(f"INSERT INTO {table} (id, n, v) VALUES (0, 0, 'newer') USING TIMESTAMP 150000000")
    session.execute(f"INSERT INTO {table} (id, n, v) VALUES (1, 0, 'older') USING TIMESTAMP 1")
    session.execute(f"INSERT INTO {table} (id, n, v) VALUES (-1, 0, 'own')")
    session.execute(f"DELETE FROM {table} WHERE id = 2")
    with pytest.raises(WritetimeError, match=r"other has rows. An import into it changes nothing where .* --merge"):
        into()
    report = into(merge=True).comparison
    assert report is not None
    assert report.proven
    # One is newer, two were deleted, and one is its own.
    assert report.newer == 4
    rows = {(row.id, row.n): row.v for row in session.execute(f"SELECT id, n, v FROM {table}")}
    assert (rows[0, 0], rows[0, 1], rows[1, 0], rows[-1, 0]) == ("newer", "v0", "v1", "own")
    assert (2, 0) not in rows
    session.execute(f"DELETE v FROM {table} USING TIMESTAMP 160000000 WHERE id = 5 AND n = 0")
    session.execute(f"TRUNCATE {table}")
    session.execute(f"INSERT INTO {table} (id, n, v) VALUES (1, 0, 'older') USING TIMESTAMP 1")
    report = into(merge=True).comparison
    assert report is not None
    assert report.differing == 1


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("CREATE INDEX by_v ON {0}.other (v)", r"has the index by_v, which would not get the rows: drop it"),
        ("ALTER TABLE {0}.other ADD x int", r"has other regular columns \(v text, w int, x int\) than the table at"),
    ],
)
def test_tables_that_are_refused(
    settings: Settings, session: Session, into: Callable[..., IntoReport], statement: str, fault: str
) -> None:
    keyspace = settings.cassandra.keyspace
    session.execute(f"CREATE TABLE {keyspace}.other (id int, n int, v text, w int, PRIMARY KEY (id, n))")
    session.execute(statement.format(keyspace))
    with pytest.raises(WritetimeError, match=fault):
        into()


def test_parts_of_tables_that_an_import_does_not_keep() -> None:
    """By their rows in the system tables: Cassandra 5.0 allows no views by default, and has no transactions."""
    views = [{"view_name": "seen", "base_table_name": "items"}, {"view_name": "x", "base_table_name": "others"}]
    with pytest.raises(WritetimeError, match="the materialised view seen, which would not get the rows: drop it"):
        require_importable(SCHEMA, views, [], {})
    require_importable(SCHEMA, views[1:], [], {"transactional_mode": "off"})
    with pytest.raises(WritetimeError, match=r"shop.items has transactions \(Accord\)"):
        require_importable(SCHEMA, [], [], {"transactional_mode": "full"})
    with pytest.raises(WritetimeError, match="has counters, which can be imported into an empty table only"):
        require_merge(parse_table("CREATE TABLE shop.hits (k int PRIMARY KEY, c counter)"))


def test_what_cannot_be_imported_says_why(
    settings: Settings, session: Session, into: Callable[..., IntoReport], lake: LakeTable, tmp_path: Path
) -> None:
    keyspace = settings.cassandra.keyspace
    with pytest.raises(WritetimeError, match="the database has no keyspace missing: create it"):
        restore_into(settings, lake, str(tmp_path / "none"), "missing.other")
    with pytest.raises(WritetimeError, match="'other' names no table"):
        restore_into(settings, lake, str(tmp_path / "none"), "other")
    into()
    with pytest.raises(WritetimeError, match=r"has another restore: shop.items as of 150000000, for .*: name another"):
        into("another")
    with pytest.raises(WritetimeError, match=r"as of 150000000, for .*other: name another folder"):
        restore_into(settings, lake, str(tmp_path / "out0"), f"{keyspace}.other", merge=True)
    done = run("restore", lake.name, "--to", str(tmp_path / "oa"), "--into", f"{keyspace}.other", "--version", "oa")
    assert "--version oa is for SSTables without --into" in done.stderr
    session.execute(f"DROP TABLE {keyspace}.other")
    with pytest.raises(WritetimeError, match=r"the database has no table"):
        into()
    session.execute(f"CREATE TABLE {keyspace}.other (id int, n int, v text, w int, PRIMARY KEY (id, n))")
    with pytest.raises(WritetimeError, match=r"other was dropped and created again since .* was written"):
        into()


def test_nodes_on_other_machines_import_by_themselves(
    settings: Settings,
    session: Session,
    into: Callable[..., IntoReport],
    lake: LakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(node_import, "is_here", lambda _address: False)
        report = into()
        assert report.comparison is None
        assert report.remaining == ["127.0.0.1"]
        table = f"{settings.cassandra.keyspace}.other"
        done = run("restore", lake.name, "--to", str(tmp_path / "out0"), "--into", table)
        assert done.exit_code == 1
        assert "1 node on other machines (127.0.0.1) have not imported their SSTables: run `writetime" in done.stderr
    done = run("import", str(tmp_path / "out0"))
    assert done.exit_code == 0, done.output
    assert "SSTables imported from" in done.output
    monkeypatch.setattr(node_import, "import_node", None)
    report = into()
    assert report.comparison is not None
    assert report.comparison.proven


def test_sstables_for_scylladb(
    settings: Settings,
    session: Session,
    into: Callable[..., IntoReport],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They have its version, and views and indexes get their rows. tests/scylla/test_restore.py loads them."""
    assert not is_scylla(session)
    keyspace = settings.cassandra.keyspace
    session.execute(f"CREATE TABLE {keyspace}.other (id int, n int, v text, w int, PRIMARY KEY (id, n))")
    session.execute(f"CREATE TABLE {keyspace}.other_scylla_cdc_log (id int PRIMARY KEY)")
    session.execute(f"CREATE INDEX by_v ON {keyspace}.other (v)")
    monkeypatch.setattr(module, "is_scylla", lambda _session: True)
    monkeypatch.setattr(node_import, "is_here", lambda _address: False)
    report = into()
    assert report.remaining == ["127.0.0.1"]
    assert report.manifest.version == "me"
    assert sum(sstable.rows for sstable in report.manifest.sstables) == 51
    assert all((tmp_path / "out0" / sstable.file).name.startswith("me-") for sstable in report.manifest.sstables)
    assert f"{keyspace}.other is captured, and an import is not in its CDC log" in caplog.text
    # A run that goes on looks for the nodes in the same way.
    assert into() == report


def test_a_damaged_sstable_is_not_imported(
    session: Session, into: Callable[..., IntoReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_import, "is_here", lambda _address: False)
    into()
    manifest = read_manifest(str(tmp_path / "out0"))
    assert manifest is not None
    data = tmp_path / "out0" / manifest.sstables[0].file
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(WritetimeError, match=rf"{data} has the CRC32 \d+, and the manifest has \d+: restore"):
        node_import.import_node(session, str(tmp_path / "out0"), manifest, manifest.sstables[0].node)


def test_another_keyspace_with_types(settings: Settings, session: Session, tmp_path: Path) -> None:
    """Types of the copy are those of its keyspace."""
    keyspace = settings.cassandra.keyspace
    columns = "(k int PRIMARY KEY, a address, f frozen<list<frozen<address>>>, c tuple<int, frozen<address>>)"
    session.execute(f"CREATE TYPE {keyspace}.address (street text, number int)")
    session.execute(f"CREATE TABLE {keyspace}.people {columns}")
    for k in range(20):
        home = f"{{street: 's{k}', number: {k}}}"
        session.execute(f"INSERT INTO {keyspace}.people (k, a, f, c) VALUES ({k}, {home}, [{home}], ({k}, {home}))")
    (snapshot,) = node_snapshots.take_snapshot(settings, f"{keyspace}.people", "people")
    assert run("backfill", f"{keyspace}.people", str(snapshot)).exit_code == 0
    other = f"{keyspace}_copy"
    session.execute(
        f"CREATE KEYSPACE {other} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    try:
        done = run("restore", f"{keyspace}.people", "--to", str(tmp_path / "out"), "--into", f"{other}.people")
        assert done.exit_code == 0, done.output
        ours, theirs = (list(session.execute(f"SELECT JSON * FROM {name}.people")) for name in (keyspace, other))
        assert len(ours) == 20
        assert ours == theirs
    finally:
        session.execute(f"DROP KEYSPACE {other}")


ODD_TABLES = {
    "quoted names": (
        '"select" int, "Key" int, "from" int, "writetime(v)" int, v text, PRIMARY KEY ("select", "Key")',
        """INSERT INTO {0} ("select", "Key", "from", "writetime(v)", v) VALUES (1, 2, 3, 4, 'v')""",
    ),
    "only keys": ("k int, c int, PRIMARY KEY (k, c)", "INSERT INTO {0} (k, c) VALUES (1, 2)"),
    "static columns alone": ("k int, c int, s int STATIC, PRIMARY KEY (k, c)", "INSERT INTO {0} (k, s) VALUES (1, 2)"),
    "counters": ("k int PRIMARY KEY, c counter", "UPDATE {0} SET c = c + 5 WHERE k = 1"),
    "descending": (
        "k int, c text, d int, v int, PRIMARY KEY (k, c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC",
        "INSERT INTO {0} (k, c, d, v) VALUES (1, 'c', 2, 3)",
    ),
    "frozen": (
        "k frozen<list<int>> PRIMARY KEY, f frozen<map<int, frozen<set<text>>>>, t tuple<int, text>, l list<int>",
        "INSERT INTO {0} (k, f, t, l) VALUES ([1], {{1: {{'a'}}}}, (1, 'b'), [3, 1])",
    ),
    "times of no calendar": (
        "k timestamp PRIMARY KEY, d date, n duration",
        "INSERT INTO {0} (k, d, n) VALUES (4611686018427387904, 4294967295, 1mo2d3ns)",
    ),
}


@pytest.mark.parametrize("kind", ODD_TABLES)
def test_odd_tables(settings: Settings, session: Session, tmp_path: Path, kind: str) -> None:
    columns, statement = ODD_TABLES[kind]
    table = f"{settings.cassandra.keyspace}.Odd"
    name = f'{settings.cassandra.keyspace}."Odd"'
    session.execute(f"CREATE TABLE {name} ({columns})")
    session.execute(statement.format(name))
    (snapshot,) = node_snapshots.take_snapshot(settings, table, "odd")
    assert run("backfill", table, str(snapshot)).exit_code == 0
    arguments = ["restore", table, "--into", f"{table}_copy", "--to"]
    done = run(*arguments, str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert "1 row in the lake; 0 differ" in done.stderr
    again = run(*arguments, str(tmp_path / "other"))
    assert again.exit_code == 1
    assert f"{table}_copy has rows. An import into it" in again.stderr


def test_changes_that_reach_the_lake_later_are_no_differences(
    session: Session, into: Callable[..., IntoReport], lake: LakeTable
) -> None:
    """The nodes of other machines may import hours later."""
    first = into()
    add(lake, [write(1000, 0, 120_000_000, v="late"), write(3, 0, 120_000_000, v="late")], 1)
    assert into() == first
    assert first.comparison is not None
    assert first.comparison.proven


def test_a_type_with_other_fields(settings: Settings, session: Session, tmp_path: Path) -> None:
    table = parse_table(
        "CREATE TYPE shop.address (street text); CREATE TABLE shop.people (k int PRIMARY KEY, a address)"
    )
    session.execute(f"CREATE TYPE {settings.cassandra.keyspace}.address (street text, number int)")
    with pytest.raises(WritetimeError, match=r"address has other fields \(street text, number int\) than"):
        restore_into(
            settings, create_table(settings, table), str(tmp_path / "out"), f"{settings.cassandra.keyspace}.people"
        )


def test_killed_at_any_time(settings: Settings, session: Session, tmp_path: Path) -> None:
    """The program is killed while it writes, while the node imports, and while it compares; the last run ends."""
    lake, wanted = with_history(settings, session, "killed", seed=50)
    other = f"{settings.cassandra.keyspace}.killed_copy"
    arguments = ["restore", lake.name, "--to", str(tmp_path / "out"), "--into", other, "--as-of", str(instant_after(1))]
    program = [sys.executable, "-m", "writetime", *arguments]
    began = time.monotonic()
    # The first copy shows how long a run takes.
    subprocess.run([*program[:6], f"{tmp_path}/first", "--into", f"{other}_first", *program[9:]], check=True)
    seconds = time.monotonic() - began
    chooser = random.Random(str(seconds))
    for _ in range(4):
        running = subprocess.Popen(program, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(chooser.random() * seconds)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(wanted[1].rows)} rows in the lake; 0 differ" in done.stderr
    Answers.of(session, other).assert_same(wanted[1])
    assert json.loads((tmp_path / "out" / "restore.json").read_text())["as_of"] == instant_after(1)
