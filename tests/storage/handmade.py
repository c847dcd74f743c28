"""Tables made by hand, in addition to the generated ones: those that need a history of schemas, and those that CQL can
check."""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.support.format_server import FormatServer
from tests.support.generate import KEYSPACE as GENERATED
from tests.support.generate import SCALARS, Generator
from writetime.core.errors import WritetimeError
from writetime.schema.system import read_schemas
from writetime.schema.table import TableSchema
from writetime.schema.types import Native

KEYSPACE = "handmade"
COMPACT = "thrift"
_PLAIN_COLUMNS = {f"c_{name}": name for name in SCALARS} | {
    "c_list": "list<int>",
    "c_set": "set<text>",
    "c_map": "map<text, double>",
    "c_frozen": "frozen<map<int, frozen<list<text>>>>",
    "c_tuple": "frozen<tuple<int, text, boolean>>",
    "c_vector": "vector<float, 3>",
}
COMPLEX = ("c_list", "c_set", "c_map")  # not frozen
PLAIN_ROWS = 30
MANY = 150
# A key is longer than a chunk.
LONG_KEY = "k" * 12_000
# One table each, compacted.
COMPRESSORS = ("LZ4Compressor", "SnappyCompressor", "ZstdCompressor", "DeflateCompressor", "NoopCompressor")
COMPACTED = tuple(f"compacted_{name.lower()}" for name in COMPRESSORS)

# The system tables keep when a column was dropped in milliseconds.
_AROUND_THE_DROP = [100_000, 199_999, 200_000, 200_001, 300_000]
_BEFORE = [
    f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
    f"CREATE KEYSPACE {COMPACT} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
    f"CREATE TABLE {COMPACT}.dense (k int, c int, v int, PRIMARY KEY (k, c)) WITH COMPACT STORAGE",
    f"CREATE TABLE {COMPACT}.static (k int PRIMARY KEY, v int) WITH COMPACT STORAGE",
    f"CREATE TABLE {COMPACT}.readable (k int PRIMARY KEY, v int)",
    "CREATE TYPE {ks}.grown (a int)",
    "CREATE TYPE {ks}.key (a int, b text)",
    "CREATE TABLE {ks}.keyed (k int, c frozen<key>, t frozen<tuple<int, frozen<key>>>, l frozen<list<frozen<key>>>,"
    " v int, PRIMARY KEY (k, c, t, l)) WITH CLUSTERING ORDER BY (c ASC, t DESC, l ASC) AND cdc = true",
    "CREATE TABLE {ks}.counted (k int, c int, n counter, m counter, s counter STATIC, PRIMARY KEY (k, c))",
    "CREATE TABLE {ks}.dropped (k int, c int, kept int, gone int, again int, l list<int>, u frozen<grown>,"
    " s text STATIC, PRIMARY KEY (k, c))",
    "CREATE TABLE {ks}.altered (k int, c int, u grown, f frozen<grown>, l list<frozen<grown>>, PRIMARY KEY (k, c))",
    "CREATE TABLE {ks}.wide (k int, c int, d text, s text STATIC, v text, PRIMARY KEY (k, c, d))"
    " WITH CLUSTERING ORDER BY (c DESC, d ASC) AND compression = {{'class': 'LZ4Compressor', 'chunk_length_in_kb': 4}}",
    "CREATE TABLE {ks}.many (k int PRIMARY KEY, v text)"
    " WITH compression = {{'class': 'LZ4Compressor', 'chunk_length_in_kb': 4}}",
    "CREATE TABLE {ks}.long (k text, c int, v text, PRIMARY KEY (k, c))"
    " WITH compression = {{'class': 'LZ4Compressor', 'chunk_length_in_kb': 4}}",
    *(
        f"CREATE TABLE {{ks}}.{table} (k int PRIMARY KEY, v text)"
        f" WITH compression = {{{{'class': '{compressor}', 'chunk_length_in_kb': 4}}}}"
        for table, compressor in zip(COMPACTED, COMPRESSORS, strict=True)
    ),
]
_ALTERATIONS = [
    "ALTER TABLE {ks}.dropped DROP gone",
    "ALTER TABLE {ks}.dropped DROP l",
    "ALTER TABLE {ks}.dropped DROP u",
    "ALTER TABLE {ks}.dropped DROP s",
    "ALTER TABLE {ks}.dropped DROP again USING TIMESTAMP 200000",
    "ALTER TABLE {ks}.dropped ADD again int",
    "ALTER TABLE {ks}.dropped ADD added text",
    "ALTER TYPE {ks}.grown ADD b text",
    "ALTER TYPE {ks}.key ADD d int",
    "ALTER TYPE {ks}.key RENAME b TO renamed",
]
_QUERIES = {
    "counted": "SELECT k, c, n, m, s FROM {ks}.counted",
    "dropped": "SELECT k, c, kept, writetime(kept) AS kept_time, again, writetime(again) AS again_time, added,"
    " writetime(added) AS added_time FROM {ks}.dropped",
    "keyed": "SELECT k, c, t, l, v, writetime(v) AS v_time FROM {ks}.keyed",
    **{table: f"SELECT k, v, writetime(v) AS v_time FROM {{ks}}.{table}" for table in COMPACTED},
}


def plain_columns() -> dict[str, str]:
    """The columns of the table `plain`, and their types, of those that the version of the nodes has."""
    return {c: t for c, t in _PLAIN_COLUMNS.items() if Generator.has_vectors or not t.startswith("vector")}


def _plain_query() -> str:
    return (
        "SELECT k, "
        + ", ".join(
            # The driver has no timestamps before the year 1, and cannot read the TTLs of an absent collection. Nodes
            # before 5.0 have only these names of the functions.
            f"{'blobAsBigint(timestampAsBlob(c_timestamp)) AS c_timestamp' if t == 'timestamp' else c}"
            + ("" if c in COMPLEX else f", writetime({c}) AS {c}_time, ttl({c}) AS {c}_ttl")
            for c, t in plain_columns().items()
        )
        + " FROM {ks}.plain"
    )


@dataclass
class Answers:
    """The rows of CQL of each table, the seconds before and after, and for each table of a keyspace with compact ones
    its schema or why it was refused."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    asked: tuple[int, int] = (0, 0)
    compact: dict[str, TableSchema | WritetimeError] = field(default_factory=dict)


def write(server: FormatServer) -> Answers:
    """Write the tables in two parts, each flushed into a snapshot of its own (`first`, `second`), and query them."""
    columns = ", ".join(f"{name} {cql_type}" for name, cql_type in plain_columns().items())
    _run(server, [*_BEFORE, f"CREATE TABLE {KEYSPACE}.plain (k int PRIMARY KEY, {columns})"])
    _run(server, [*_counters(), *_dropped("before"), *_altered("before"), *_keyed("before"), *_wide()])
    _run(server, [*_many(), *_long(), *_compacted(), *_plain()])
    # A snapshot flushes its tables.
    server.nodetool("snapshot", "-t", "first", KEYSPACE, GENERATED)
    _run(server, [*_ALTERATIONS, *_counters(), *_dropped("after"), *_altered("after"), *_keyed("after")])
    # The database does not hide cells in memory that are older than a column's drop.
    server.nodetool("snapshot", "-t", "second", KEYSPACE)
    answers = Answers()
    start = server.now()
    for table, query in (_QUERIES | {"plain": _plain_query()}).items():
        answers.rows[table] = [row._asdict() for row in server.session().execute(query.format(ks=KEYSPACE))]
    answers.asked = (start, server.now())
    answers.compact = read_schemas(server.session(), [COMPACT])
    return answers


def _run(server: FormatServer, statements: list[str]) -> None:
    for statement in statements:
        server.write_one(statement.format(ks=KEYSPACE) if "{ks}" in statement else statement)


def _counters() -> list[str]:
    table = f"{KEYSPACE}.counted"
    statements = []
    for k in range(3):
        statements.append(f"UPDATE {table} SET s = s + {10 + k} WHERE k = {k}")
        for c in range(4):
            statements.append(
                f"UPDATE {table} SET n = n + {k * 1000 + c}, m = m - {2**40 + c} WHERE k = {k} AND c = {c}"
            )
    statements.append(f"UPDATE {table} SET n = n - {2**63 - 1} WHERE k = 0 AND c = 9")
    return [
        *statements,
        f"DELETE n FROM {table} WHERE k = 0 AND c = 1",
        f"DELETE FROM {table} WHERE k = 1 AND c = 2",
        f"DELETE FROM {table} WHERE k = 1 AND c > 2",
        f"DELETE s FROM {table} WHERE k = 1",
        f"DELETE FROM {table} WHERE k = 2",
    ]


def _dropped(when: str) -> list[str]:
    table = f"{KEYSPACE}.dropped"
    if when == "before":
        values = "1, 2, 3, [1, 2], {a: 4}, 'static'"
        columns = "kept, gone, again, l, u, s"
        return [
            f"INSERT INTO {table} (k, c, {columns}) VALUES (0, {c}, {values}) USING TIMESTAMP {time}"
            for c, time in enumerate(_AROUND_THE_DROP)
        ] + [
            f"UPDATE {table} USING TIMESTAMP 150000 SET gone = 1 WHERE k = 1 AND c = 1",
            f"UPDATE {table} USING TIMESTAMP 150000 SET l = l + [7] WHERE k = 1 AND c = 2",
            f"DELETE l, u, again FROM {table} USING TIMESTAMP 150000 WHERE k = 1 AND c = 3",
            f"UPDATE {table} USING TIMESTAMP 150000 SET s = 'only' WHERE k = 2",
        ]
    return [
        f"INSERT INTO {table} (k, c, kept, again, added) VALUES (3, {c}, 1, 2, 'new') USING TIMESTAMP {time}"
        for c, time in enumerate(_AROUND_THE_DROP)
    ]


def _altered(when: str) -> list[str]:
    table = f"{KEYSPACE}.altered"
    value = "{a: 1}" if when == "before" else "{a: 2, b: 'new'}"
    k = 1 if when == "before" else 2
    return [
        f"INSERT INTO {table} (k, c, u, f, l) VALUES ({k}, 0, {value}, {value}, [{value}, {value}])",
        f"UPDATE {table} SET u.a = 5 WHERE k = {k} AND c = 1",
        f"INSERT INTO {table} (k, c, u, f) VALUES ({k}, 2, null, null)",
    ]


def _keyed(when: str) -> list[str]:
    """Rows whose clustering has a user-defined type, before and after it grew; some of the latter are the former."""
    table = f"{KEYSPACE}.keyed"
    keys = ["{a: 1}", "{a: 1, b: 'x'}", "{a: 2, b: 'x'}"]
    if when == "after":
        keys = ["{a: 1, renamed: 'x'}", "{a: 1, d: 3}", "{a: 1, renamed: 'x', d: null}", "{a: 2, renamed: 'x', d: -4}"]
    v = len(keys)
    columns = "k, c, t, l, v"
    inserts = [
        f"INSERT INTO {table} ({columns}) VALUES ({k}, {c}, ({k}, {t}), [{c}, {t}], {v}{k}{i}{j})"
        for k in range(2)
        for i, c in enumerate(keys)
        for j, t in enumerate(keys)
    ]
    return [
        *inserts,
        f"DELETE FROM {table} WHERE k = 0 AND c = {keys[1]} AND t < (0, {keys[2]})",
        f"DELETE FROM {table} WHERE k = 1 AND c > {keys[0]} AND c < {keys[2]}",
    ]


def _wide() -> list[str]:
    """Partitions of many index blocks (of 1 KiB): with range tombstones of all kinds, of one block and of many."""
    r = random.Random(5)
    table = f"{KEYSPACE}.wide"
    statements = []
    for k in range(4):
        statements.append(f"DELETE FROM {table} USING TIMESTAMP 10 WHERE k = {k}")
        if k > 0:
            statements.append(f"INSERT INTO {table} (k, s) VALUES ({k}, 'static {k}') USING TIMESTAMP 20")
        for c in range(60):
            for d in "ab":
                text = f"{r.getrandbits(400):x}"
                statements.append(
                    f"INSERT INTO {table} (k, c, d, v) VALUES ({k}, {c}, '{d}', '{text}') USING TIMESTAMP 30"
                )
    statements.append(f"DELETE FROM {table} USING TIMESTAMP 15 WHERE k = 1 AND c >= 0 AND c < 1000")
    for low in range(0, 60, 3):
        # They all have the same deletion time, so that they differ in their bounds only.
        statements.append(f"DELETE FROM {table} USING TIMESTAMP 16 WHERE k = 2 AND c > {low} AND c <= {low + 2}")
    for i in range(25):
        low, time = r.randrange(60), r.choice([12, 25, 26])
        where = r.choice(
            [f"c >= {low} AND c < {low + r.randrange(1, 20)}", f"c = {low} AND d > 'a'", f"c > {low}", f"c = {low}"]
        )
        statements.append(f"DELETE FROM {table} USING TIMESTAMP {time + i % 3} WHERE k = 3 AND {where}")
    return statements


def _many() -> list[str]:
    """Partitions enough for several chunks."""
    r = random.Random(6)
    return [f"INSERT INTO {KEYSPACE}.many (k, v) VALUES ({k}, '{r.getrandbits(800):x}')" for k in range(MANY)]


def _long() -> list[str]:
    """A partition of several blocks, with a key that is longer than these."""
    inserts = [f"INSERT INTO {KEYSPACE}.long (k, c, v) VALUES ('{LONG_KEY}', {c}, '{c:0300}')" for c in range(40)]
    # One mutation, so that the commit log has the key once.
    return [f"BEGIN UNLOGGED BATCH {'; '.join(inserts)}; APPLY BATCH"]


def _compacted() -> list[str]:
    """Rows of several chunks, with values that compress and values that do not."""
    r = random.Random(8)
    return [
        f"INSERT INTO {KEYSPACE}.{table} (k, v) VALUES ({k}, '{r.getrandbits(800):x}{k:0200}')"
        for table in COMPACTED
        for k in range(40)
    ]


def _plain() -> list[str]:
    """Rows inserted once, with every type, so that CQL returns each cell."""
    generator, r = Generator(11), random.Random(11)
    literals = {
        "c_list": lambda: f"[{r.randrange(9)}, {r.randrange(9)}]",
        "c_set": lambda: f"{{'a{r.randrange(9)}', 'b'}}",
        "c_map": lambda: f"{{'x': {r.randrange(9)}.5, 'y': -0.25}}",
        "c_frozen": lambda: f"{{{r.randrange(9)}: ['a', 'b'], 10: []}}",
        "c_tuple": lambda: f"({r.randrange(9)}, 'x', true)",
        "c_vector": lambda: f"[{r.randrange(9)}.5, 0, -1]",
    }
    statements = []
    for k in range(PLAIN_ROWS):
        columns = [c for c in plain_columns() if r.random() < 0.6]
        values = [
            literals[c]() if c in literals else generator.literal(Native(_PLAIN_COLUMNS[c]), key=True) for c in columns
        ]
        using = f"TIMESTAMP {1000 + k}" + (" AND TTL 1000000" if k % 3 == 0 else "")
        statements.append(
            f"INSERT INTO {KEYSPACE}.plain ({', '.join(['k', *columns])}) VALUES ({', '.join([str(k), *values])})"
            f" USING {using}"
        )
    return statements
