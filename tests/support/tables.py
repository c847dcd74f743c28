"""Tables and writes that a generator makes too rarely: ties of each type, columns dropped and added again."""

from tests.support.generate import KEYSPACE, SCALARS, UDTS, Generator
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, Native, Tuple, Vector, freeze

# Columns that are dropped and added again, and a type that grows. Drops are recorded in milliseconds.
ALTERED = [
    [
        f"CREATE TYPE {KEYSPACE}.grown (a int, b text)",
        f"CREATE TABLE {KEYSPACE}.altered (p int, c int, s int static, x int, l list<int>, gone text, u grown,"
        " f frozen<grown>, PRIMARY KEY (p, c)) WITH cdc = true AND memtable_flush_period_in_ms = 2000",
        f"INSERT INTO {KEYSPACE}.altered (p, c, s, x, l, gone, u, f) VALUES"
        " (1, 1, 1, 1, [1, 2], 'g', {a: 1, b: 'x'}, {a: 1, b: 'x'}) USING TIMESTAMP 10000",
        f"INSERT INTO {KEYSPACE}.altered (p, c, x, l) VALUES (1, 2, 2, [3]) USING TIMESTAMP 20000",
        f"UPDATE {KEYSPACE}.altered USING TIMESTAMP 30000 SET x = 3, l = l + [4] WHERE p = 1 AND c = 3",
        f"UPDATE {KEYSPACE}.altered USING TIMESTAMP 5000 SET gone = 'only' WHERE p = 2 AND c = 1",
    ],
    [
        f"ALTER TABLE {KEYSPACE}.altered DROP x USING TIMESTAMP 20000",
        f"ALTER TABLE {KEYSPACE}.altered DROP l USING TIMESTAMP 20000",
        f"ALTER TABLE {KEYSPACE}.altered DROP s USING TIMESTAMP 20000",
        f"ALTER TABLE {KEYSPACE}.altered DROP gone USING TIMESTAMP 20000",
        f"ALTER TYPE {KEYSPACE}.grown ADD c int",
    ],
    [
        f"ALTER TABLE {KEYSPACE}.altered ADD x int",
        f"ALTER TABLE {KEYSPACE}.altered ADD l list<int>",
        f"ALTER TABLE {KEYSPACE}.altered ADD s int static",
        f"UPDATE {KEYSPACE}.altered USING TIMESTAMP 25000 SET x = 5, u.c = 7 WHERE p = 1 AND c = 1",
        f"INSERT INTO {KEYSPACE}.altered (p, c, s, f) VALUES (1, 4, 9, {{a: 2, c: 3}}) USING TIMESTAMP 25000",
    ],
    [f"UPDATE {KEYSPACE}.altered USING TIMESTAMP 15000 SET x = 6, l = [7] WHERE p = 1 AND c = 2"],
]


def every_type() -> TableSchema:
    """A table with a column of every type."""
    scalars = [Native(name) for name in SCALARS]
    nested = [
        Collection("list", (Native("varint"),), frozen=True),
        Collection("map", (Native("text"), Native("decimal")), frozen=True),
        Tuple((Native("int"), Native("timestamp"))),
        Vector(Native("text"), 2),
        freeze(UDTS["outer"]),
        Collection("map", (Native("int"), Native("bigint"))),
    ]
    columns = [Column(f"r{i}", cql_type) for i, cql_type in enumerate(scalars + nested)]
    key = Column("p", Native("int")), Column("c", Native("int"))
    return TableSchema(KEYSPACE, "ties", key[:1], key[1:], (), tuple(columns))


def ties(generator: Generator, schema: TableSchema) -> list[str]:
    """Writes of the same time to the same cells, so that values, TTLs and deletions decide."""
    r = generator.random
    statements = []
    for _ in range(160):
        column = r.choice(schema.regular)
        names = ", ".join(["p", "c", *(c.name for c in schema.regular)])
        values = ", ".join(["1", str(r.randint(0, 20)), *(generator.literal(c.type) for c in schema.regular)])
        ttl = r.choice(["", "", " AND TTL 100000", " AND TTL 200000"])
        statements.append(f"INSERT INTO {KEYSPACE}.ties ({names}) VALUES ({values}) USING TIMESTAMP 5{ttl}")
        if r.random() < 0.2:
            row = f"p = 1 AND c = {r.randint(0, 20)}"
            statements.append(f"DELETE {column.name} FROM {KEYSPACE}.ties USING TIMESTAMP 5 WHERE {row}")
    return statements


def counted() -> TableSchema:
    """A table of counters, of which some are static and some in clusterings that have several forms."""
    key = (Column("p", Native("int")),), (Column("c", Native("decimal")), Column("d", Native("int"), reversed=True))
    return TableSchema(
        KEYSPACE,
        "counted",
        *key,
        (Column("s", Native("counter")),),
        tuple(Column(name, Native("counter")) for name in ("m", "n")),
    )


def counter_writes(generator: Generator, count: int) -> list[str]:
    """Counters go up and down and are deleted in every way. Each deletion is later than the writes that it deletes and
    earlier than the writes that follow, because CQL sets the times of counters itself.

    Cells are deleted in one half of the partitions, ranges and partitions in the other: when a partition is deleted, a
    memtable keeps the deletions of its cells, and hides later increments by them until it is flushed."""
    r, table = generator.random, f"{KEYSPACE}.counted"
    statements = []
    for _ in range(count):
        p, c, d = r.randint(0, 3), r.choice(["1", "1.0", "2"]), r.randint(0, 2)
        row = f"p = {p} AND c = {c} AND d = {d}"
        n, by = r.choice("mn"), r.choice(["+ 1", "- 1", f"+ {1 << 40}", f"- {(1 << 63) - 1}"])
        updates = [f"UPDATE {table} SET {n} = {n} {by} WHERE {row}"] * 10
        updates += [f"UPDATE {table} SET s = s {by} WHERE p = {p}"] * 3
        updates += [f"BEGIN COUNTER BATCH {updates[0]}; {updates[-1]}; APPLY BATCH"] * 2
        of_cells = [f"DELETE {n} FROM {table} WHERE {row}", f"DELETE s FROM {table} WHERE p = {p}"]
        of_many = [f"DELETE FROM {table} WHERE {where}" for where in (f"p = {p}", f"p = {p} AND c = {c}")]
        deletions = [f"DELETE FROM {table} WHERE {row}", *(of_cells if p % 2 else of_many)]
        statements.append(r.choice(updates + deletions))
    return statements
