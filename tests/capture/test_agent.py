"""Changes that other tools lose or report wrongly, and an agent's handling of segments; on a real node and broker."""

from typing import Any

from tests.support.captured import Captured


def row_of(captured: Captured, table: str, **wanted: Any) -> dict[str, Any]:
    """The last published change of a table with these values."""
    changes = captured.changes(table).drop_columns(["origin"]).to_pylist()
    return [c for c in changes if all(c[name] == value for name, value in wanted.items())][-1]


def test_changes_that_others_lose_or_report_wrongly(captured: Captured) -> None:
    """The cases in which Debezium's events for Cassandra are wrong or missing, all in one log."""
    captured.write(
        "CREATE TYPE {ks}.address (street text, zip int)",
        "CREATE TABLE {ks}.not_captured (k int PRIMARY KEY, v vector<float, 2>)",
        "CREATE TABLE {ks}.vectors (k int PRIMARY KEY, v vector<float, 2>) WITH cdc = true",
        "CREATE TABLE {ks}.ranges (k int, c int, v int, s text static, PRIMARY KEY (k, c)) WITH cdc = true",
        "CREATE TABLE {ks}.types (k int PRIMARY KEY, u address, s set<text>, m map<text, int>, l list<int>, "
        "i varint, d decimal, t text) WITH cdc = true",
        "CREATE TABLE {ks}.counts (k int PRIMARY KEY, n counter) WITH cdc = true",
    )
    with captured.agent():
        captured.write(
            # 1. A vector, also of a table without CDC.
            "INSERT INTO {ks}.not_captured (k, v) VALUES (1, [1.5, 2.5])",
            "INSERT INTO {ks}.vectors (k, v) VALUES (1, [1.5, 2.5])",
            # 2. Ranges that meet, in one batch: a boundary between them.
            *(f"INSERT INTO {{ks}}.ranges (k, c, v) VALUES (1, {c}, {c}) USING TIMESTAMP 100" for c in range(10)),
            "BEGIN BATCH DELETE FROM {ks}.ranges USING TIMESTAMP 200 WHERE k = 1 AND c >= 2 AND c < 4; "
            "DELETE FROM {ks}.ranges USING TIMESTAMP 300 WHERE k = 1 AND c >= 4 AND c < 6; APPLY BATCH",
            "INSERT INTO {ks}.ranges (k, c, v) VALUES (2, 0, 0)",
            # 4. A row's deletion, and a newer insert of it, in one batch.
            "BEGIN BATCH DELETE FROM {ks}.ranges USING TIMESTAMP 400 WHERE k = 1 AND c = 0; "
            "INSERT INTO {ks}.ranges (k, c, v) VALUES (1, 0, 40) USING TIMESTAMP 500; APPLY BATCH",
            # 5. Two times in one update of a partition.
            "BEGIN BATCH INSERT INTO {ks}.ranges (k, c, v) VALUES (5, 1, 1) USING TIMESTAMP 1000; "
            "INSERT INTO {ks}.ranges (k, c, v) VALUES (5, 2, 2) USING TIMESTAMP 9000; APPLY BATCH",
            "BEGIN BATCH DELETE FROM {ks}.ranges USING TIMESTAMP 1000 WHERE k = 6; "
            "INSERT INTO {ks}.ranges (k, c, v) VALUES (6, 1, 1) USING TIMESTAMP 2000; APPLY BATCH",
            # 6. Static columns, and a deletion that touches none.
            "UPDATE {ks}.ranges SET s = 'alone' WHERE k = 7",
            "UPDATE {ks}.ranges SET s = 'gone' WHERE k = 8",
            "DELETE s FROM {ks}.ranges WHERE k = 8",
            "UPDATE {ks}.ranges SET s = 'stays' WHERE k = 1",
            "DELETE FROM {ks}.ranges WHERE k = 1 AND c = 9",
            # 3. A field of a type that is not frozen. 7. Collections. 9. Large numbers.
            "INSERT INTO {ks}.types (k, u, s, m, l) VALUES (1, {street: 'a', zip: 1}, {'x', 'y'}, {'a': 1}, [1, 2, 3])",
            "UPDATE {ks}.types SET u.zip = 2 WHERE k = 1",
            "UPDATE {ks}.types SET s = s - {'x'} WHERE k = 1",
            "UPDATE {ks}.types SET m = {'b': 2} WHERE k = 1",
            "UPDATE {ks}.types SET m = m + {'c': 3} WHERE k = 1",
            "UPDATE {ks}.types USING TTL 10000 SET m = m + {'d': 4} WHERE k = 1",
            "DELETE l[0] FROM {ks}.types WHERE k = 1",
            f"UPDATE {{ks}}.types SET i = {-(10**40)}, d = {10**30}.{10**9} WHERE k = 1",
            # 10. Counters.
            "UPDATE {ks}.counts SET n = n + 5 WHERE k = 1",
            "UPDATE {ks}.counts SET n = n - 7 WHERE k = 1",
        )
        captured.settle()
    captured.assert_same("vectors", "ranges", "types", "counts")
    assert row_of(captured, "counts", k=1)["n"]["value"] == -2
    deletions = [c for c in captured.changes("ranges").to_pylist() if c["kind"] == "range_tombstone"]
    assert sorted(c["tombstone"]["write_time"] for c in deletions) == [200, 300]
    both = row_of(captured, "ranges", k=1, c=0)
    assert (both["tombstone"]["write_time"], both["marker"]["write_time"]) == (400, 500)
    times = [row_of(captured, "ranges", k=5, c=c)["v"]["write_time"] for c in (1, 2)]
    assert times == [1000, 9000]
    assert row_of(captured, "ranges", k=6, kind="partition_tombstone")["tombstone"]["write_time"] == 1000
    assert row_of(captured, "ranges", k=6, kind="row")["v"]["write_time"] == 2000
    statics = [c["k"] for c in captured.changes("ranges").to_pylist() if c["kind"] == "static"]
    assert sorted(statics) == [1, 7, 8, 8]
    changes = [c["m"] for c in captured.changes("types").to_pylist() if c["m"]]
    overwritten, appended, expiring = changes[1:]
    assert overwritten["tombstone"] is not None
    assert appended["tombstone"] is None
    assert [(e["path"], e["ttl"]) for e in expiring["elements"]] == [("d", 10000)]
    removed = next(c["s"] for c in captured.changes("types").to_pylist() if c["s"] and not c["marker"])
    assert [(e["path"], e["tombstone"]) for e in removed["elements"]] == [("x", True)]
