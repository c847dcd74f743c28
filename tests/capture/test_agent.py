"""Changes that other tools lose or report wrongly: the cases in which Debezium's events for Cassandra are wrong or
missing, all in one log, which one agent publishes from a real node to a real broker."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.captured import Captured, captured_keyspace
from tests.support.format_server import FormatServer
from writetime.core.config import Settings

pytestmark = pytest.mark.long

TABLES = [
    "CREATE TYPE {ks}.address (street text, zip int)",
    "CREATE TABLE {ks}.not_captured (k int PRIMARY KEY, v vector<float, 2>)",
    "CREATE TABLE {ks}.vectors (k int PRIMARY KEY, v vector<float, 2>) WITH cdc = true",
    "CREATE TABLE {ks}.ranges (k int, c int, v int, s text static, PRIMARY KEY (k, c)) WITH cdc = true",
    "CREATE TABLE {ks}.types (k int PRIMARY KEY, u address, s set<text>, m map<text, int>, l list<int>, "
    "i varint, d decimal, t text) WITH cdc = true",
    "CREATE TABLE {ks}.counts (k int PRIMARY KEY, n counter) WITH cdc = true",
]
WRITES = [
    # A vector, also of a table without CDC.
    "INSERT INTO {ks}.not_captured (k, v) VALUES (1, [1.5, 2.5])",
    "INSERT INTO {ks}.vectors (k, v) VALUES (1, [1.5, 2.5])",
    # Ranges that meet, in one batch: a boundary between them.
    *(f"INSERT INTO {{ks}}.ranges (k, c, v) VALUES (1, {c}, {c}) USING TIMESTAMP 100" for c in range(10)),
    "BEGIN BATCH DELETE FROM {ks}.ranges USING TIMESTAMP 200 WHERE k = 1 AND c >= 2 AND c < 4; "
    "DELETE FROM {ks}.ranges USING TIMESTAMP 300 WHERE k = 1 AND c >= 4 AND c < 6; APPLY BATCH",
    "INSERT INTO {ks}.ranges (k, c, v) VALUES (2, 0, 0)",
    # A row's deletion, and a newer insert of it, in one batch.
    "BEGIN BATCH DELETE FROM {ks}.ranges USING TIMESTAMP 400 WHERE k = 1 AND c = 0; "
    "INSERT INTO {ks}.ranges (k, c, v) VALUES (1, 0, 40) USING TIMESTAMP 500; APPLY BATCH",
    # Two times in one update of a partition.
    "BEGIN BATCH INSERT INTO {ks}.ranges (k, c, v) VALUES (5, 1, 1) USING TIMESTAMP 1000; "
    "INSERT INTO {ks}.ranges (k, c, v) VALUES (5, 2, 2) USING TIMESTAMP 9000; APPLY BATCH",
    "BEGIN BATCH DELETE FROM {ks}.ranges USING TIMESTAMP 1000 WHERE k = 6; "
    "INSERT INTO {ks}.ranges (k, c, v) VALUES (6, 1, 1) USING TIMESTAMP 2000; APPLY BATCH",
    # Static columns, and a deletion that touches none.
    "UPDATE {ks}.ranges SET s = 'alone' WHERE k = 7",
    "UPDATE {ks}.ranges SET s = 'gone' WHERE k = 8",
    "DELETE s FROM {ks}.ranges WHERE k = 8",
    "UPDATE {ks}.ranges SET s = 'stays' WHERE k = 1",
    "DELETE FROM {ks}.ranges WHERE k = 1 AND c = 9",
    # A field of a type that is not frozen, collections, and large numbers.
    "INSERT INTO {ks}.types (k, u, s, m, l) VALUES (1, {street: 'a', zip: 1}, {'x', 'y'}, {'a': 1}, [1, 2, 3])",
    "UPDATE {ks}.types SET u.zip = 2 WHERE k = 1",
    "UPDATE {ks}.types SET s = s - {'x'} WHERE k = 1",
    "UPDATE {ks}.types SET m = {'b': 2} WHERE k = 1",
    "UPDATE {ks}.types SET m = m + {'c': 3} WHERE k = 1",
    "UPDATE {ks}.types USING TTL 10000 SET m = m + {'d': 4} WHERE k = 1",
    "DELETE l[0] FROM {ks}.types WHERE k = 1",
    f"UPDATE {{ks}}.types SET i = {-(10**40)}, d = {10**30}.{10**9} WHERE k = 1",
    # Counters.
    "UPDATE {ks}.counts SET n = n + 5 WHERE k = 1",
    "UPDATE {ks}.counts SET n = n - 7 WHERE k = 1",
]


@pytest.fixture(scope="module")
def published(
    node: FormatServer, kafka: Settings, tmp_path_factory: pytest.TempPathFactory, cassandra_version: str
) -> Iterator[Captured]:
    """A keyspace with these writes, all of them published."""
    tables, writes = ([s for s in part if has_types(cassandra_version, s)] for part in (TABLES, WRITES))
    with captured_keyspace(node, kafka, tmp_path_factory.mktemp("published")) as captured:
        captured.write(*tables)
        with captured.agent():
            captured.write(*writes)
            captured.settle()
        yield captured


def has_types(version: str, statement: str) -> bool:
    """Whether a version has the types of a statement: vectors came with 5.0."""
    return version == "5.0" or not re.search("vector|not_captured", statement)


def row_of(captured: Captured, table: str, **wanted: Any) -> dict[str, Any]:
    """The last published change of a table with these values."""
    changes = captured.changes(table).drop_columns(["origin"]).to_pylist()
    return [c for c in changes if all(c[name] == value for name, value in wanted.items())][-1]


@pytest.mark.parametrize(
    "table", [pytest.param("vectors", marks=pytest.mark.from_cassandra_5("vectors")), "ranges", "types", "counts"]
)
def test_merged_changes_are_the_rows_of_the_database(published: Captured, table: str) -> None:
    published.assert_same(table)


def test_a_counter_is_its_last_value(published: Captured) -> None:
    assert row_of(published, "counts", k=1)["n"]["value"] == -2


def test_ranges_that_meet_keep_their_write_times(published: Captured) -> None:
    deletions = [c for c in published.changes("ranges").to_pylist() if c["kind"] == "range_tombstone"]
    assert sorted(c["tombstone"]["write_time"] for c in deletions) == [200, 300]


def test_a_deletion_and_a_newer_insert_of_a_row_both_exist(published: Captured) -> None:
    both = row_of(published, "ranges", k=1, c=0)
    assert (both["tombstone"]["write_time"], both["marker"]["write_time"]) == (400, 500)


def test_writes_of_one_batch_keep_their_own_times(published: Captured) -> None:
    times = [row_of(published, "ranges", k=5, c=c)["v"]["write_time"] for c in (1, 2)]
    assert times == [1000, 9000]
    assert row_of(published, "ranges", k=6, kind="partition_tombstone")["tombstone"]["write_time"] == 1000
    assert row_of(published, "ranges", k=6, kind="row")["v"]["write_time"] == 2000


def test_static_columns_are_in_a_change_only_if_they_were_written(published: Captured) -> None:
    statics = [c["k"] for c in published.changes("ranges").to_pylist() if c["kind"] == "static"]
    assert sorted(statics) == [1, 7, 8, 8]


def test_a_collection_that_is_overwritten_is_not_one_that_is_extended(published: Captured) -> None:
    changes = [c["m"] for c in published.changes("types").to_pylist() if c["m"]]
    overwritten, appended, expiring = changes[1:]
    assert overwritten["tombstone"] is not None
    assert appended["tombstone"] is None
    assert [(e["path"], e["ttl"]) for e in expiring["elements"]] == [("d", 10000)]


def test_an_element_that_is_removed_from_a_set_is_its_tombstone(published: Captured) -> None:
    removed = next(c["s"] for c in published.changes("types").to_pylist() if c["s"] and not c["marker"])
    assert [(e["path"], e["tombstone"]) for e in removed["elements"]] == [("x", True)]
