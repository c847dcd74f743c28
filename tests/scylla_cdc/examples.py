"""Statements with the log rows in ScyllaDB's sources and documentation: checks of the tests' own writer."""

from typing import Any

from tests.support.generate import KEYSPACE, UDTS
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, Native

_INT, _TEXT = Native("int"), Native("text")
EXAMPLES = TableSchema(
    KEYSPACE,
    "cdc_examples",
    (Column("p", _INT),),
    (Column("c", _INT), Column("d", _INT, reversed=True)),
    (Column("s", _INT),),
    (
        Column("v", _INT),
        Column("w", _TEXT),
        Column("m", Collection("map", (_INT, _INT))),
        Column("e", Collection("set", (_INT,))),
        Column("l", Collection("list", (_INT,))),
        Column("u", UDTS["inner"]),
    ),
)
LATE = TableSchema(KEYSPACE, "cdc_late", (Column("p", _INT),), (), (), (Column("v", _INT),))

_ROW = "p = {p} AND c = 1 AND d = 1"
_KEY = {"c": 1, "d": 1}
Wanted = list[tuple[int, list[dict[str, Any]]]]
# Each with the groups that it makes: microseconds after the statement's time, and the rows.
CASES: list[tuple[str, Wanted]] = [
    (
        f"UPDATE t USING TIMESTAMP {{t}} SET s = 1, v = 2 WHERE {_ROW}",
        [(0, [{"op": 1, "s": 1}, {"op": 1, **_KEY, "v": 2}])],
    ),
    (
        "INSERT INTO t (p, c, d, v, m) VALUES ({p}, 1, 1, 3, {{1: 2}}) USING TIMESTAMP {t} AND TTL 100",
        [
            (
                0,
                [
                    {"op": 2, "ttl": 100, **_KEY, "v": 3},
                    {"op": 1, **_KEY, "cdc$deleted_m": True},
                    {"op": 1, "ttl": 100, **_KEY, "m": [(1, 2)]},
                ],
            )
        ],
    ),
    (
        "INSERT INTO t (p, c, d, v, m) VALUES ({p}, 1, 1, null, {{1: 2}}) USING TIMESTAMP {t}",
        [(0, [{"op": 2, **_KEY, "cdc$deleted_v": True, "cdc$deleted_m": True, "m": [(1, 2)]}])],
    ),
    (
        f"UPDATE t USING TIMESTAMP {{t}} AND TTL 5 SET v = 0, w = null WHERE {_ROW}",
        [(0, [{"op": 1, **_KEY, "cdc$deleted_w": True}, {"op": 1, "ttl": 5, **_KEY, "v": 0}])],
    ),
    ("DELETE FROM t USING TIMESTAMP {t} WHERE p = {p}", [(0, [{"op": 4}])]),
    (f"DELETE FROM t USING TIMESTAMP {{t}} WHERE {_ROW}", [(0, [{"op": 3, **_KEY}])]),
    (
        "DELETE FROM t USING TIMESTAMP {t} WHERE p = {p} AND c IN (1, 2) AND d = 1",
        [(0, [{"op": 3, **_KEY}, {"op": 3, "c": 2, "d": 1}])],
    ),
    ("DELETE FROM t USING TIMESTAMP {t} WHERE p = {p} AND c = 1", [(0, [{"op": 5, "c": 1}, {"op": 7, "c": 1}])]),
    ("DELETE FROM t USING TIMESTAMP {t} WHERE p = {p} AND c > 2", [(0, [{"op": 6, "c": 2}, {"op": 7}])]),
    ("DELETE FROM t USING TIMESTAMP {t} WHERE p = {p} AND c <= 2", [(0, [{"op": 5}, {"op": 7, "c": 2}])]),
    # In the order of the clustering, which is descending: from the greatest value down to those greater than 2.
    (
        "DELETE FROM t USING TIMESTAMP {t} WHERE p = {p} AND c = 1 AND d > 2",
        [(0, [{"op": 5, "c": 1}, {"op": 8, "c": 1, "d": 2}])],
    ),
    (
        "DELETE FROM t USING TIMESTAMP {t} WHERE p = {p} AND c = 1 AND d < 9 AND d >= 2",
        [(0, [{"op": 6, "c": 1, "d": 9}, {"op": 7, "c": 1, "d": 2}])],
    ),
    (f"DELETE m FROM t USING TIMESTAMP {{t}} WHERE {_ROW}", [(1, [{"op": 1, **_KEY, "cdc$deleted_m": True}])]),
    (f"UPDATE t USING TIMESTAMP {{t}} SET m = null WHERE {_ROW}", [(0, [{"op": 1, **_KEY, "cdc$deleted_m": True}])]),
    (
        f"UPDATE t USING TIMESTAMP {{t}} SET m = m + {{{{1: 2}}}} WHERE {_ROW}",
        [(0, [{"op": 1, **_KEY, "m": [(1, 2)]}])],
    ),
    (
        f"UPDATE t USING TIMESTAMP {{t}} SET m[4] = 5, m[3] = null WHERE {_ROW}",
        [(0, [{"op": 1, **_KEY, "m": [(4, 5)], "cdc$deleted_elements_m": [3]}])],
    ),
    (
        f"UPDATE t USING TIMESTAMP {{t}} SET e = e - {{{{1, 2}}}} WHERE {_ROW}",
        [(0, [{"op": 1, **_KEY, "cdc$deleted_elements_e": [1, 2]}])],
    ),
    (
        f"UPDATE t USING TIMESTAMP {{t}} SET u.a = 5 WHERE {_ROW}",
        [(0, [{"op": 1, **_KEY, "u": {"a": 5, "b": None}}])],
    ),
    (
        f"DELETE u.b FROM t USING TIMESTAMP {{t}} WHERE {_ROW}",
        [(0, [{"op": 1, **_KEY, "u": {"a": None, "b": None}, "cdc$deleted_elements_u": [1]}])],
    ),
    (
        f"BEGIN BATCH UPDATE t USING TIMESTAMP {{t}} SET v = 1 WHERE {_ROW};"
        f" DELETE w FROM t USING TIMESTAMP {{later}} WHERE {_ROW}; APPLY BATCH",
        [(0, [{"op": 1, **_KEY, "v": 1}]), (5, [{"op": 1, **_KEY, "cdc$deleted_w": True}])],
    ),
    (
        f"BEGIN BATCH USING TIMESTAMP {{t}} DELETE FROM t WHERE {_ROW}; UPDATE t SET s = 3 WHERE p = {{p}};"
        " INSERT INTO t (p, c, d) VALUES ({p}, 0, 0); DELETE FROM t WHERE p = {p} AND c = 5; APPLY BATCH",
        [
            (
                0,
                [
                    {"op": 1, "s": 3},
                    {"op": 2, "c": 0, "d": 0},
                    {"op": 3, **_KEY},
                    {"op": 5, "c": 5},
                    {"op": 7, "c": 5},
                ],
            )
        ],
    ),
]


def examples(base: int) -> list[str]:
    """Return the statements, each on a separate partition."""
    table = f" {KEYSPACE}.{EXAMPLES.name} "
    return [
        text.format(t=base + 10 * i, later=base + 10 * i + 5, p=i).replace(" t ", table)
        for i, (text, _) in enumerate(CASES)
    ]


def late_writes(base: int) -> list[str]:
    """Return writes to few rows, one each second."""
    table = f"{KEYSPACE}.{LATE.name}"
    return [
        f"INSERT INTO {table} (p, v) VALUES ({i % 7}, {i}) USING TIMESTAMP {base + i * 1_000_000}" for i in range(60)
    ]
