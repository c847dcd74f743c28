"""Verification between two clusters with one real node each.

Oracle: the database: the rows that the test wrote to two clusters.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from cassandra.cluster import Session
from click.testing import CliRunner

from tests.support.generate import SEED
from tests.support.servers import server_addresses, start
from tests.support.settings import write_settings
from writetime.cli.main import main
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.verify import clusters, suspects
from writetime.verify.clusters import ClusterProgress, ClusterReport, verify_clusters

pytestmark = pytest.mark.long

_REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
_TABLE = "shop.orders"
_STATEMENTS = [
    f"CREATE KEYSPACE IF NOT EXISTS shop WITH replication = {_REPLICATION}",
    "CREATE TYPE IF NOT EXISTS shop.place (street text, number int)",
    f"CREATE TABLE IF NOT EXISTS {_TABLE} (id int, n int, s text STATIC, v text, at frozen<place>, tags set<text>, "
    "PRIMARY KEY (id, n))",
]
_ROWS = 100


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with server_addresses(tmp_path_factory.mktemp("other")) as settings:
        start(settings, "cassandra")
        yield settings


@pytest.fixture
def both(cassandra: Settings, other: Settings) -> Settings:
    """Settings of a database that name the other one `new`."""
    return cassandra.model_copy(update={"clusters": {"new": other.cassandra}})


@pytest.fixture
def sessions(both: Settings, other: Settings) -> Iterator[tuple[Session, Session]]:
    """Sessions to both, which have the same table with the same rows."""
    with connect(both) as here, connect(other) as there:
        for session in (here, there):
            session.execute("DROP KEYSPACE IF EXISTS shop")
            for statement in _STATEMENTS:
                session.execute(statement)
            for i in range(_ROWS):
                session.execute(
                    f"INSERT INTO {_TABLE} (id, n, s, v, at, tags) VALUES ({i % 40}, {i}, 's{i % 40}', 'v{i}', "
                    f"{{street: 'x', number: {i}}}, {{'a', 'b{i}'}}) USING TIMESTAMP {i + 1}"
                )
        yield here, there
        here.execute("DROP KEYSPACE shop", timeout=60)


def compared(settings: Settings, wait_seconds: float = 0) -> ClusterReport:
    return verify_clusters(settings, "new", _TABLE, wait_seconds)


def test_each_row_that_differs_is_found(
    both: Settings, sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = random.Random(SEED)
    assert (compared(both).database_rows, compared(both).against_rows) == (_ROWS, _ROWS)
    assert compared(both).proven
    changed = chooser.sample(range(_ROWS), 6)
    changes = ("SET v = 'other'", "SET tags = tags + {'c'}", "SET at = {street: 'y', number: 1}")
    for i, change in zip(changed[:3], changes, strict=True):
        chooser.choice(sessions).execute(
            f"UPDATE {_TABLE} USING TIMESTAMP 1000 {change} WHERE id = {i % 40} AND n = {i}"
        )
    for i in changed[3:5]:
        chooser.choice(sessions).execute(f"DELETE FROM {_TABLE} USING TIMESTAMP 1000 WHERE id = {i % 40} AND n = {i}")
    sessions[1].execute(f"INSERT INTO {_TABLE} (id, n) VALUES ({changed[5] % 40}, -1) USING TIMESTAMP 1000")
    wanted = {(i % 40, i) for i in changed[:5]} | {(changed[5] % 40, -1)}
    for rows_per_range in (200_000, 10):
        monkeypatch.setattr(clusters, "RANGE_ROWS", rows_per_range)
        report = compared(both)
        assert not report.proven
        found = {(d["id"], d["n"]) for d in (x.database or x.against for x in report.real) if d}
        assert found == wanted
    monkeypatch.setattr(suspects, "SUSPECTS", 1)
    assert compared(both).unsettled >= 1


def test_times_of_equal_values(both: Settings, sessions: tuple[Session, Session]) -> None:
    for i, update in enumerate(
        (
            "USING TIMESTAMP 1000 SET v = 'v0'",
            "USING TIMESTAMP 2 AND TTL 100000 SET v = 'v1'",
            "USING TIMESTAMP 1000 SET tags = tags + {'a'}",
        )
    ):
        sessions[1].execute(f"UPDATE {_TABLE} {update} WHERE id = {i} AND n = {i}")
    assert compared(both).proven
    report = verify_clusters(both, "new", _TABLE, 0, with_times=True)
    assert {d.database["n"] for d in report.real if d.database} == {0, 1, 2}
    assert report.differing == 3


def test_a_row_that_is_on_its_way_lags(
    both: Settings, sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clusters.time_now()
    sessions[0].execute(f"UPDATE {_TABLE} SET v = 'new' WHERE id = 1 AND n = 1")
    times = iter([began])
    now = clusters.time_now
    monkeypatch.setattr(clusters, "time_now", lambda: next(times, None) or now())
    report = compared(both)
    assert report.proven
    assert [d.lagging for d in report.differences] == [True]
    # A write time in the future does not show when the row was written.
    sessions[0].execute(f"UPDATE {_TABLE} USING TIMESTAMP 4000000000000000 SET v = 'new' WHERE id = 2 AND n = 2")
    assert [d.lagging for d in compared(both).real] == [False] * 2


def test_a_lost_cell_of_a_row_that_is_written_often(
    both: Settings, sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clusters.time_now()
    monkeypatch.setattr(clusters, "time_now", lambda: began)
    sessions[1].execute(f"DELETE v FROM {_TABLE} USING TIMESTAMP 1000 WHERE id = 3 AND n = 3")
    for session in sessions:
        session.execute(f"UPDATE {_TABLE} SET at = {{street: 'z', number: 3}} WHERE id = 3 AND n = 3")
    report = compared(both)
    assert [(d.lagging, (d.database or {})["v"]) for d in report.differences] == [(False, "v3")]


def test_the_command(
    both: Settings, sessions: tuple[Session, Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(both, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    monkeypatch.setattr("writetime.cli.verify.PROGRESS_SECONDS", 0.0)
    command = ["verify", _TABLE, "--against", "new", "--wait", "0"]
    equal = CliRunner().invoke(main, command)
    assert (equal.exit_code, equal.stdout) == (0, "")
    assert f"{_TABLE}: 100% of the tokens, {_ROWS} rows in the database and {_ROWS} in new" in equal.stderr
    sessions[1].execute(f"UPDATE {_TABLE} USING TIMESTAMP 1000 SET v = 'x' WHERE id = 0 AND n = 0")
    other = CliRunner().invoke(main, command)
    assert other.exit_code == 1
    [row] = map(orjson.loads, other.stdout.splitlines())
    assert (row["database"]["v"], row["against"]["v"]) == ("v0", "x")


def test_tables_that_cannot_be_compared(both: Settings, sessions: tuple[Session, Session]) -> None:
    with pytest.raises(WritetimeError, match=r"no cluster 'old' \(known: new\); add a section \[clusters.old\]"):
        verify_clusters(both, "old", _TABLE)
    sessions[1].execute(f"ALTER TABLE {_TABLE} ADD more int")
    with pytest.raises(WritetimeError, match=r"no more here, and more int \(regular\) there"):
        compared(both)
    sessions[1].execute(f"DROP TABLE {_TABLE}")
    with pytest.raises(WritetimeError, match=f"the cluster new has no table {_TABLE}"):
        compared(both)


def test_progress_reaches_the_end(both: Settings, sessions: tuple[Session, Session]) -> None:
    del sessions
    found: list[ClusterProgress] = []
    verify_clusters(both, "new", _TABLE, 0, found.append)
    assert found[-1] == ClusterProgress(1.0, _ROWS, _ROWS)
    assert [p.share for p in found] == sorted(p.share for p in found)
