"""Verification against a real database: it finds exactly the differences, even while the table takes writes."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import orjson
import pyroaring
import pytest
from cassandra.cluster import Session
from click.testing import CliRunner

from tests.support.commands import run
from tests.support.made import add, write
from writetime.cli.main import main
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.delta.deletion_vectors import read_vector, write_vectors
from writetime.delta.table_changes import TableChange
from writetime.lake import views
from writetime.lake.horizon import raise_complete_snapshot
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.schema.system import read_schema
from writetime.verify import comparison, suspects
from writetime.verify.comparison import VerifyReport, verify
from writetime.view.refreshing import refresh
from writetime.wire.publishing import Sender
from writetime.wire.watermarks import LandingReport, ensure_watermarks_topic, send_report

pytestmark = pytest.mark.long


@pytest.fixture
def session(settings: Settings) -> Iterator[Session]:
    with connect(settings) as opened:
        yield opened


def snapshot(table: str) -> None:
    run("backfill", table, *run("snapshot", table).split())


def make_items(settings: Settings, session: Session) -> str:
    """A table like `tests.support.made.SCHEMA`, so that changes to it can be made by hand."""
    table = f"{settings.cassandra.keyspace}.items"
    session.execute(f"CREATE TABLE {table} (id int, n int, v text, w int, PRIMARY KEY (id, n))")
    for i in range(200):
        # A write time in the future shows nothing, and hides no other.
        later = " USING TIMESTAMP 4000000000000000" if i == 199 else ""
        session.execute(f"INSERT INTO {table} (id, n, v, w) VALUES ({i % 50}, {i}, 'v{i}', {i}){later}")
    snapshot(table)
    return table


def add_by_hand(table: LakeTable, number: int, *rows: dict[str, object]) -> None:
    assert add(table, rows, number, table.schema())


def test_differences_and_lag(settings: Settings, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_items(settings, session)
    lake = open_table(settings, table)
    report = verify(settings, lake, 0)
    assert_all_equal(report)
    monkeypatch.setattr(comparison, "RANGE_ROWS", 10)
    assert len(verify(settings, lake, 0).ranges) > len(report.ranges)
    # Written after the snapshot.
    session.execute(f"UPDATE {table} SET v = 'later' WHERE id = 1 AND n = 1")
    session.execute(f"INSERT INTO {table} (id, n, v) VALUES (1000, 1, 'new')")
    assert_lag(settings, lake)
    snapshot(table)
    assert verify(settings, lake, 0).differences == []
    # The lake has a value that the database never had.
    wrong = write(7, 7, views.time_now() - 1, v="wrong", w=7)
    add_by_hand(lake, 1, wrong, write(2000, 1, 5, v="never"))
    assert_differences(settings, lake)
    monkeypatch.setattr(suspects, "SUSPECTS", 1)
    assert verify(settings, lake, 0).unsettled == 1


def test_ranges_follow_the_rows_of_the_database_if_the_lake_has_none(
    settings: Settings, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"{settings.cassandra.keyspace}.items"
    session.execute(f"CREATE TABLE {table} (id int, n int, v text, PRIMARY KEY (id, n))")
    for i in range(400):
        # One partition has more rows than a range.
        session.execute(f"INSERT INTO {table} (id, n, v) VALUES ({i % 100 if i < 350 else 7}, {i}, 'v')")
    create_table(settings, read_schema(session, table))
    monkeypatch.setattr(comparison, "RANGE_ROWS", 10)
    ranges = verify(settings, open_table(settings, table), 0).ranges
    assert [r.first for r in ranges] == [-(1 << 63)] + [r.last + 1 for r in ranges[:-1]]
    assert ranges[-1].last == (1 << 63) - 1
    counts = sorted(r.database_rows for r in ranges)
    assert (sum(counts), counts[-1]) == (400, 54)
    assert counts[-2] < 20


def assert_all_equal(report: VerifyReport) -> None:
    """200 rows are equal, and the ranges are all tokens, each once."""
    assert report.proven
    assert sum(r.database_rows for r in report.ranges) == sum(r.lake_rows for r in report.ranges) == 200
    assert all(r.database_digest == r.lake_digest for r in report.ranges)
    assert [r.first for r in report.ranges] == [-(1 << 63)] + [r.last + 1 for r in report.ranges[:-1]]
    assert report.ranges[-1].last == (1 << 63) - 1


def assert_lag(settings: Settings, lake: LakeTable) -> None:
    """Two rows lag, and none differs."""
    report = verify(settings, lake, 0)
    assert report.proven
    assert sorted((d.database or {})["v"] for d in report.differences) == ["later", "new"]
    assert all(d.lagging for d in report.differences)
    answer = CliRunner().invoke(main, ["verify", lake.name, "--wait", "0"])
    assert answer.exit_code == 0
    assert {orjson.loads(line)["lagging"] for line in answer.stdout.splitlines()} == {True}
    assert "0 differ, 2 more lag behind" in answer.stderr


def assert_differences(settings: Settings, lake: LakeTable) -> None:
    """A row has another value than in the database, and one is not there; the remedies are named."""
    report = verify(settings, lake, 0)
    assert not report.proven
    found = {(d.lake or {})["id"]: d for d in report.real}
    assert found.keys() == {7, 2000}
    assert (found[7].database or {})["v"] == "v7"
    assert found[2000].database is None
    answer = CliRunner().invoke(main, ["verify", lake.name, "--wait", "0"])
    assert answer.exit_code == 1
    assert len(answer.stdout.splitlines()) == 2
    assert "by sstableloader, nodetool import or repair streaming" in answer.stderr
    assert "`writetime backfill`" in answer.stderr


def test_a_row_of_the_future_that_differs_is_not_lag(settings: Settings, session: Session) -> None:
    table = make_items(settings, session)
    session.execute(f"UPDATE {table} USING TIMESTAMP 4000000000000001 SET v = 'later' WHERE id = 1 AND n = 1")
    (difference,) = verify(settings, open_table(settings, table), 0).differences
    assert not difference.lagging


def test_a_lost_cell_of_a_row_that_is_written_often(settings: Settings, session: Session) -> None:
    table = make_items(settings, session)
    session.execute(f"UPDATE {table} USING TIMESTAMP 1000 SET v = 'old' WHERE id = 60 AND n = 1")
    session.execute(f"UPDATE {table} SET w = 1 WHERE id = 60 AND n = 1")
    lake = open_table(settings, table)
    snapshot(table)
    session.execute(f"UPDATE {table} USING TIMESTAMP 2000 SET v = 'loaded' WHERE id = 60 AND n = 1")
    session.execute(f"UPDATE {table} SET w = 2 WHERE id = 60 AND n = 1")
    report = verify(settings, lake, 0)
    assert [(d.lagging, (d.lake or {})["v"]) for d in report.differences] == [(False, "old")]
    assert not report.proven
    session.execute(f"UPDATE {table} SET v = 'later' WHERE id = 60 AND n = 1")
    assert verify(settings, lake, 0).proven


def test_a_lost_write_that_is_newer_than_all_others(settings: Settings, session: Session) -> None:
    """It is lag until the lake should have it."""
    table = make_items(settings, session)
    lake = open_table(settings, table)
    session.execute(f"INSERT INTO {table} (id, n, v) VALUES (1000, 1, 'lost')")
    assert [d.lagging for d in verify(settings, lake, 0).differences] == [True]
    raise_complete_snapshot(lake, views.time_now() + 10_000_000)
    report = verify(settings, lake, 0)
    assert [d.lagging for d in report.differences] == [False]
    assert not report.proven


@pytest.fixture
def written_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """All writes of a test are later than the watermarks that the lake has when the command begins."""
    monkeypatch.setattr(comparison, "whole_until", lambda _: 0)


@pytest.mark.usefixtures("written_meanwhile")
def test_a_lost_deletion_in_a_row_that_is_written_often(settings: Settings, session: Session) -> None:
    """CQL has no time of it, so it is lag for as long as the lake may not have all writes up to it."""
    table = make_items(settings, session)
    lake = open_table(settings, table)
    session.execute(f"DELETE v FROM {table} WHERE id = 1 AND n = 1")
    session.execute(f"UPDATE {table} SET w = 2 WHERE id = 1 AND n = 1")
    assert verify(settings, lake, 0).proven
    raise_complete_snapshot(lake, views.time_now() + 600_000_000)
    report = verify(settings, lake, 0)
    assert [(d.lagging, (d.lake or {})["v"]) for d in report.differences] == [(False, "v1")]
    session.execute(f"UPDATE {table} SET v = 'later' WHERE id = 1 AND n = 1")
    assert verify(settings, lake, 0).proven


@pytest.mark.usefixtures("written_meanwhile")
def test_lost_deletions_of_parts_of_cells_in_rows_that_are_written_often(settings: Settings, session: Session) -> None:
    keyspace = settings.cassandra.keyspace
    table = f"{keyspace}.parts"
    session.execute(f"CREATE TYPE {keyspace}.place (street text, city text)")
    session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, w int, m map<text, int>, e set<int>, u place)")
    for i in range(4):
        values = f"({i}, 0, {{'a': 1, 'b': 2}}, {{1, 2}}, {{street: 'a', city: 'b'}})"
        session.execute(f"INSERT INTO {table} (id, w, m, e, u) VALUES {values}")
    snapshot(table)
    lake = open_table(settings, table)
    for i, part in enumerate(("m = m - {'a'}", "e = e - {1}", "u.city = null", "m['c'] = 3")):
        session.execute(f"UPDATE {table} SET w = 1, {part} WHERE id = {i}")
    assert verify(settings, lake, 0).proven
    raise_complete_snapshot(lake, views.time_now() + 600_000_000)
    found = {(d.database or {})["id"]: d.lagging for d in verify(settings, lake, 0).differences}
    assert found == {0: False, 1: False, 2: False, 3: True}


@pytest.mark.parametrize("kept_by", ["vectors", "rewritten"])
def test_the_compacted_view(settings: Settings, session: Session, kept_by: Literal["vectors", "rewritten"]) -> None:
    """It is compared with the rows as of its last refresh."""
    table = make_items(settings, session)
    lake = open_table(settings, table)
    assert verify(settings, lake, 0).view is None
    settings = settings.model_copy(update={"lake": settings.lake.model_copy(update={"view": kept_by})})
    refresh(settings, lake)
    for i in range(3):
        session.execute(f"UPDATE {table} SET v = 'later' WHERE id = {i} AND n = {i}")
        session.execute(f"DELETE FROM {table} WHERE id = {i + 10} AND n = {i + 10}")
    snapshot(table)
    # It is behind, and not wrong.
    report = verify(settings, lake, 10)
    assert report.proven
    assert report.view is not None
    assert (report.view.rows, report.view.expected) == (200, 200)
    refresh(settings, lake)
    report = verify(settings, lake, 10)
    assert report.view is not None
    assert (report.proven, report.view.rows) == (True, 197)
    # A row is missing, without a reason.
    now = lake.view.load()
    file = next(each for each in now.files if each.marked < each.rows)
    marked = read_vector(lake.view.storage, file.vector)
    row = min(set(range(file.rows)) - set(marked))
    vector = write_vectors(lake.view.storage, {file.path: marked | pyroaring.BitMap([row])})[file.path]
    lake.view.commit(now, TableChange(mark=[(file, vector)]))
    report = verify(settings, lake, 0)
    assert report.view is not None
    assert not report.proven
    assert (report.view.rows, report.view.expected, report.real) == (196, 197, [])
    (wrong,) = report.view.differences
    assert (wrong.view, (wrong.expected or {}).keys()) == (None, {"id", "n", "v", "w"})
    answer = CliRunner().invoke(main, ["verify", table, "--wait", "0"])
    assert answer.exit_code == 1
    assert f"`writetime rebuild {table} view`" in answer.stderr
    run("rebuild", table, "view")
    assert verify(settings, lake, 0).proven


def test_lag_that_does_not_pass(settings: Settings, session: Session) -> None:
    table = make_items(settings, session)
    session.execute(f"UPDATE {table} SET v = 'later' WHERE id = 1 AND n = 1")
    ensure_watermarks_topic(settings)
    sender = Sender(settings, "test")
    for fault, status in (("a message is garbage", 1), (None, 0)):
        send_report(sender, table, LandingReport(1.0, "set aside" if fault else "landing", fault=fault, since=1.0))
        assert sender.flush()
        answer = CliRunner().invoke(main, ["verify", table, "--wait", "0"])
        assert answer.exit_code == status
        assert "0 differ, 1 more lag behind" in answer.stderr
        assert ("do not reach the lake: landing has failed since 1970" in answer.stderr) == bool(fault)


def test_a_table_that_is_written_to(settings: Settings, session: Session, is_long: bool) -> None:
    table = make_items(settings, session)
    lake = open_table(settings, table)
    stop = threading.Event()

    def writes() -> None:
        count = 0
        while not stop.is_set():
            count += 1
            session.execute(f"UPDATE {table} SET v = 'w{count}' WHERE id = {count % 50} AND n = {count % 50}")
            session.execute(f"DELETE w FROM {table} WHERE id = {count % 50} AND n = {count % 50}")
            stop.wait(0.01)

    def captures() -> None:
        while not stop.wait(1.5):
            snapshot(table)

    threads = [threading.Thread(target=target) for target in (writes, captures)]
    for thread in threads:
        thread.start()
    try:
        # Rows differ all the time, so this takes as long as it may.
        assert verify(settings, lake, 25 if is_long else 8).real == []
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    snapshot(table)
    assert verify(settings, lake, 0).differences == []


@pytest.mark.from_cassandra_5("vectors")
def test_values_of_every_kind(settings: Settings, session: Session) -> None:
    table = f"{settings.cassandra.keyspace}.every"
    for name, field in (("pair", "b"), ("timed", "write_time")):
        session.execute(f"CREATE TYPE {settings.cassandra.keyspace}.{name} (a int, {field} text)")
    session.execute(
        f"CREATE TABLE {table} (p decimal, q text, c decimal, s int STATIC, d date, f float, i inet, l list<int>, "
        "m map<text, int>, u pair, fu frozen<pair>, t tuple<int, text>, v vector<float, 2>, x int, du duration, "
        "ft frozen<timed>, em map<int, int>, fm frozen<map<int, int>>, PRIMARY KEY ((p, q), c)) "
        "WITH CLUSTERING ORDER BY (c DESC)"
    )
    key = "p = 1.0 AND q = 'k'"
    session.execute(f"UPDATE {table} SET s = 1 WHERE p = 9 AND q = ''")
    session.execute(
        f"INSERT INTO {table} (p, q, c, d, f, i, l, m, u, fu, t, v, x, du, ft, em, fm) VALUES (1.0, 'k', 1.00, "
        "'-5877641-06-23', NaN, '::1', [1, 2], {'a': 1}, {a: 1}, {a: 1, b: ''}, (1, null), [1.5, -0.0], blobAsInt(0x), "
        "1mo2d3ns, {a: 1, write_time: 'x'}, {blobAsInt(0x): 1, 2: 3}, {blobAsInt(0x): 1, 2: 3})"
    )
    session.execute(f"UPDATE {table} SET x = 5 WHERE {key} AND c = 1.0")
    session.execute(f"UPDATE {table} USING TTL 1 SET f = 1 WHERE {key} AND c = 2")
    snapshot(table)
    lake = open_table(settings, table)
    refresh(settings, lake)
    report = verify(settings, lake, 10)
    assert (report.differences, report.proven) == ([], True)
    session.execute(f"DELETE m['a'] FROM {table} WHERE {key} AND c = 1.0")
    (difference,) = verify(settings, lake, 0).differences
    assert ((difference.lake or {})["m"], (difference.database or {})["m"]) == ({"a": 1}, None)


@pytest.mark.from_cassandra_5("vectors")
def test_types_that_the_driver_cannot_read(settings: Settings, session: Session) -> None:
    """Its parser takes the hexadecimal name of a type for a number if all its digits are decimal."""
    table = f"{settings.cassandra.keyspace}.vectors"
    for name in ("u", "t1"):
        session.execute(f"CREATE TYPE {settings.cassandra.keyspace}.{name} (a int, b frozen<list<text>>)")
    session.execute(
        f"CREATE TABLE {table} (p int PRIMARY KEY, v vector<frozen<u>, 2>, w list<frozen<vector<frozen<t1>, 1>>>, "
        "m map<text, frozen<vector<frozen<u>, 1>>>, t tuple<int, frozen<vector<frozen<u>, 1>>>, u u, after text)"
    )
    u = "{a: 1, b: ['x']}"
    session.execute(
        f"INSERT INTO {table} (p, v, w, m, t, u, after) VALUES (1, [{u}, {u}], [[{u}]], {{'k': [{u}]}}, (1, [{u}]), "
        f"{u}, 'z')"
    )
    snapshot(table)
    lake = open_table(settings, table)
    assert verify(settings, lake, 10).differences == []
    session.execute(f"UPDATE {table} USING TIMESTAMP 1 SET v = [{u}, {u}] WHERE p = 2")
    (difference,) = verify(settings, lake, 0).differences
    assert (difference.database or {})["v"] == [{"a": 1, "b": ["x"]}] * 2


def test_columns_that_the_database_lacks(settings: Settings, session: Session, tmp_path: Path) -> None:
    table = make_items(settings, session)
    session.execute(f"ALTER TABLE {table} DROP w")
    with pytest.raises(WritetimeError, match="cannot be read from the database as the lake has it"):
        verify(settings, open_table(settings, table), 0)
    assert read_schema(session, table).regular
