"""Tables of the database whose cells have other write times or TTLs than those of the lake.

Oracle: the statements that wrote the two tables: the same ones, but for the faults.
"""

import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from cassandra.cluster import Session
from click.testing import CliRunner

from writetime.bulk_load.target import named
from writetime.cli.main import main
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.lake.table import open_table
from writetime.lake.views import bucket_views
from writetime.verify.restored import RestoredReport, verify_restored

pytestmark = pytest.mark.long

COLUMNS = """(k int, c int, s int STATIC, z int STATIC, v int, w int, m map<text, int>, e set<int>, l list<int>, u pair,
 PRIMARY KEY (k, c))"""
# Two cells of a row, by kind of column.
CELLS = {
    "simple": ("v = 1", "w = 2"),
    "static": ("s = 1", "z = 2"),
    "map": ("m['b'] = 1", "m['a'] = 2"),
    "set": ("e = e + {7}", "e = e + {3}"),
    "list": ("l = l + [7]", "l = l + [3]"),
    "udt": ("u.first = 1", "u.third = 2"),
}
SIMPLE = ("simple", "static")
RIGHT = ("TIMESTAMP 10 AND TTL 50000", "TIMESTAMP 20")
FAULTS = {
    "an earlier time": ("TIMESTAMP 9 AND TTL 50000", RIGHT[1]),
    "a later time": (RIGHT[0], "TIMESTAMP 21"),
    "a TTL that began later": ("TIMESTAMP 10 AND TTL 50500", RIGHT[1]),
    "a TTL in other units": ("TIMESTAMP 10 AND TTL 50000000", RIGHT[1]),
    "no TTL": ("TIMESTAMP 10", RIGHT[1]),
    "a TTL more": (RIGHT[0], "TIMESTAMP 20 AND TTL 50000"),
}
# Those of two writes that would have lost against the right ones.
LOSE = ("an earlier time", "no TTL")
# The partitions, and the kind of the column of each.
PARTITIONS = dict(enumerate(itertools.product(CELLS, FAULTS)))


def fill(session: Session, table: str, *, faulty: bool) -> None:
    """Write a table, each partition with its fault or without."""
    session.execute(f"CREATE TABLE {table} {COLUMNS}")
    for k, (kind, fault) in PARTITIONS.items():
        row = f"k = {k}" if kind == "static" else f"k = {k} AND c = 1"
        for cell, using in zip(CELLS[kind], FAULTS[fault] if faulty else RIGHT, strict=True):
            session.execute(f"UPDATE {table} USING {using} SET {cell} WHERE {row}")


@pytest.fixture
def session(settings: Settings) -> Iterator[Session]:
    with connect(settings) as opened:
        keyspace = settings.cassandra.keyspace
        opened.execute(f"CREATE TYPE {keyspace}.pair (first int, second text, third int)")
        fill(opened, f"{keyspace}.original", faulty=False)
        (snapshot,) = take_snapshot(settings, f"{keyspace}.original", "times")
        done = CliRunner().invoke(main, ["backfill", f"{keyspace}.original", str(snapshot)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        yield opened


def compare(settings: Settings, name: str, *, has_others: bool = False) -> RestoredReport:
    table = open_table(settings, f"{settings.cassandra.keyspace}.original")
    views = bucket_views(table)
    schema = named(views[0].schema, f"{settings.cassandra.keyspace}.{name}")
    return verify_restored(settings, views, schema, table.buckets, has_others=has_others)


def differing(report: RestoredReport) -> set[int]:
    return {(each.lake or each.database or {})["k"] for each in report.differences}


def test_what_differs_is_found(settings: Settings, session: Session, cassandra_version: str) -> None:
    fill(session, f"{settings.cassandra.keyspace}.other", faulty=True)
    report = compare(settings, "other")
    # Earlier versions of Cassandra report no times of parts of columns.
    reported = CELLS if cassandra_version.startswith("5.") else SIMPLE
    assert differing(report) == {k for k, (kind, _) in PARTITIONS.items() if kind in reported}
    assert report.rows == len(PARTITIONS)
    report = compare(settings, "other", has_others=True)
    wrong = {k for k, (kind, fault) in PARTITIONS.items() if kind in reported and fault in LOSE}
    assert differing(report) == wrong
    assert report.newer == len(reported) * len(FAULTS) - len(wrong)


@pytest.mark.parametrize("read_seconds", [0, 200])
def test_what_is_the_same_is_not_found(
    settings: Settings, session: Session, monkeypatch: pytest.MonkeyPatch, read_seconds: int
) -> None:
    """Also if reads take so long that the TTLs are much shorter at their end."""
    fill(session, f"{settings.cassandra.keyspace}.other", faulty=False)
    late = itertools.cycle([read_seconds, 0])
    clock = SimpleNamespace(time=lambda: time.time() - next(late))
    monkeypatch.setattr("writetime.verify.database_table.time", clock)
    report = compare(settings, "other")
    assert (report.rows, report.differing) == (len(PARTITIONS), 0)
    other = f"{settings.cassandra.keyspace}.other"
    session.execute(f"UPDATE {other} USING TIMESTAMP 10 AND TTL 50500 SET v = 1 WHERE k = 0 AND c = 1")
    assert differing(compare(settings, "other")) == {0}
