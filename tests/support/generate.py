"""Tables and writes from a seeded generator: all types, all kinds of writes, sizes at which encodings change."""

import os
import random
from collections.abc import Callable
from uuid import UUID

from writetime.schema.table import Column, TableSchema
from writetime.schema.types import (
    Collection,
    CqlType,
    Native,
    Tuple,
    Udt,
    Vector,
    freeze,
    is_complex,
    quote_name,
    quote_table,
)

KEYSPACE = "generated"
# Another number makes other tables and writes.
SEED = int(os.environ.get("GENERATOR_SEED", "0"))
SCALARS = [
    *("ascii", "bigint", "blob", "boolean", "date", "decimal", "double", "duration", "float", "inet", "int"),
    *("smallint", "text", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varint"),
]
_KINDS = ["list", "set", "map", "tuple", "vector", "inner", "outer"]
UDTS = {
    "inner": Udt(KEYSPACE, "inner", (("a", Native("int")), ("b", Native("text")))),
}
UDTS["outer"] = Udt(
    KEYSPACE,
    "outer",
    (
        ("Mixed Case", Native("decimal")),
        ("nested", freeze(UDTS["inner"])),
        ("several", freeze(Collection("map", (Native("text"), Native("int"))))),
    ),
)
COMPRESSIONS = [
    "{'class': 'LZ4Compressor', 'chunk_length_in_kb': 4}",
    "{'class': 'SnappyCompressor', 'chunk_length_in_kb': 16}",
    "{'class': 'ZstdCompressor', 'chunk_length_in_kb': 16}",
    "{'class': 'DeflateCompressor', 'chunk_length_in_kb': 64}",
    "{'class': 'LZ4Compressor', 'chunk_length_in_kb': 16, 'min_compress_ratio': 3}",
    "{'enabled': false}",
]

# Partition keys and clusterings, as literals.
Places = tuple[list[list[str]], list[list[str]]]


class Generator:
    """Makes schemas and CQL statements; the same seed makes the same ones."""

    # Of Cassandra 5.0.
    has_vectors = True

    def __init__(self, seed: int, max_ttl: int = 630_720_000) -> None:
        self.random = random.Random(seed)
        self._ttls = [1000, 86_400, max_ttl]

    def cql_type(self, depth: int = 2, *, key: bool = False) -> CqlType:
        """Make a type; one for a key if asked."""
        r = self.random
        if depth == 0 or r.random() < 0.6:
            return Native(r.choice([s for s in SCALARS if not (key and s == "duration")]))

        def inside(*, key_inside: bool = key) -> CqlType:
            return freeze(self.cql_type(depth - 1, key=key_inside))

        kind = r.choice([kind for kind in _KINDS if kind != "vector" or self.has_vectors])
        frozen = key or r.random() < 0.4
        match kind:
            case "list":
                return Collection("list", (inside(),), frozen)
            case "set":
                return Collection("set", (inside(key_inside=True),), frozen)
            case "map":
                return Collection("map", (inside(key_inside=True), inside()), frozen)
            case "tuple":
                return Tuple(tuple(inside() for _ in range(r.randint(1, 3))))
            case "vector":
                return Vector(Native(r.choice(["float", "int", "text", "bigint"])), r.randint(1, 4))
        return freeze(UDTS[kind]) if frozen else UDTS[kind]

    def schema(
        self, name: str, *, clusterings: int | None = None, regulars: int | None = None, statics: int | None = None
    ) -> TableSchema:
        """Make a table."""
        r = self.random
        clusterings = r.randint(0, 4) if clusterings is None else clusterings
        regulars = r.randint(0, 9) if regulars is None else regulars
        statics = (r.randint(0, 3) if clusterings else 0) if statics is None else statics
        # The smallest types where there are many columns: a key has 64 KiB at most, and the server its patience.
        depth = 2 if max(clusterings, regulars, statics) < 12 else 0
        return TableSchema(
            KEYSPACE,
            name,
            tuple(Column(f"p{i}", self.cql_type(1, key=True)) for i in range(r.randint(1, 3))),
            tuple(Column(f"c{i}", self.cql_type(depth, key=True), r.random() < 0.5) for i in range(clusterings)),
            tuple(Column(f"s{i}", self.cql_type(depth)) for i in range(statics)),
            tuple(Column(f"r{i}", self.cql_type(depth)) for i in range(regulars)),
        )

    def literal(self, cql_type: CqlType, *, key: bool = False) -> str:
        """Make a CQL literal of a type, now and then one at the edges of its range."""
        r = self.random
        match cql_type:
            case Native(name):
                if (
                    not key
                    and name not in ("text", "ascii", "blob", "duration", "time", "date", "smallint", "tinyint")
                    and r.random() < 0.03
                ):
                    return f"blobas{name}(0x)"
                return _LITERALS[name](r)
            case Collection("map", (k, v)):
                entries = [f"{self.literal(k, key=True)}: {self.literal(v, key=True)}" for _ in range(r.randint(1, 3))]
                return "{" + ", ".join(entries) + "}"
            case Collection("set", (e,)):
                return "{" + ", ".join(self.literal(e, key=True) for _ in range(r.randint(0, 3))) + "}"
            case Collection(_, (e,)):
                return "[" + ", ".join(self.literal(e, key=True) for _ in range(r.randint(0, 3))) + "]"
            case Vector(e, dimension):
                return "[" + ", ".join(self.literal(e, key=True) for _ in range(dimension)) + "]"
            case Tuple(arguments):
                return "(" + ", ".join(self._maybe_null(t) for t in arguments) + ")"
            case Udt(_, _, fields):
                return "{" + ", ".join(f"{quote_name(n)}: {self._maybe_null(t)}" for n, t in fields) + "}"
        raise AssertionError(cql_type)

    def _maybe_null(self, cql_type: CqlType) -> str:
        return "null" if self.random.random() < 0.15 else self.literal(cql_type, key=True)

    def places(self, schema: TableSchema) -> Places:
        """Make a few partition keys and clusterings, so that writes to them meet."""
        keys = [[self.literal(c.type, key=True) for c in schema.partition_key] for _ in range(4)]
        return keys, [[self.literal(c.type, key=True) for c in schema.clustering] for _ in range(6)]

    def bound(self, schema: TableSchema, n: int) -> str:
        """Make a bound of the range that a statement deletes, for a clustering column by its number."""
        return self.literal(schema.clustering[n].type, key=True)

    def writes(self, schema: TableSchema, count: int, places: Places | None = None) -> list[str]:
        """Make statements that write to a table, to these places or to new ones."""
        r = self.random
        keys, rows = places or self.places(schema)
        made = [self._write(schema, r.choice(keys), r.choice(rows)) for _ in range(count)]
        statements = []
        while made:
            if r.random() < 0.1 and len(made) > 3:
                batch, made = made[:3], made[3:]
                statements.append("BEGIN BATCH " + "; ".join(batch) + "; APPLY BATCH")
            else:
                statements.append(made.pop(0))
        return statements

    def _write(self, schema: TableSchema, key: list[str], row: list[str]) -> str:
        r = self.random
        table = quote_table(schema.full_name)
        using = []
        if r.random() < 0.6:
            using.append(f"TIMESTAMP {r.choice([-5, 0, 1, 1000, 1000, 2000, 1_700_000_000_000_000])}")
        timestamp = " USING " + using[0] if using else ""
        if r.random() < 0.3:
            using.append(f"TTL {r.choice(self._ttls)}")
        both = " USING " + " AND ".join(using) if using else ""
        where_key = [f"{quote_name(c.name)} = {v}" for c, v in zip(schema.partition_key, key, strict=True)]
        where_row = [f"{quote_name(c.name)} = {v}" for c, v in zip(schema.clustering, row, strict=True)]
        where = " AND ".join(where_key + where_row)
        only_key = " AND ".join(where_key)
        written = schema.static + schema.regular
        choice = r.random()
        if choice < 0.06:
            # Cassandra writes a partition deletion before 1970 to `oa` and `da` so that it cannot read it itself.
            return f"DELETE FROM {table}{timestamp.replace('-', '')} WHERE {only_key}"
        if choice < 0.14 and row:
            n = r.randrange(len(row))
            bounds = where_key + where_row[:n]
            column = quote_name(schema.clustering[n].name)
            low, high = (self.bound(schema, n) for _ in range(2))
            bounds += r.choice(
                [[f"{column} >= {low}"], [f"{column} < {high}"], [f"{column} > {low}", f"{column} <= {high}"], []]
            )
            if bounds == where_key:
                timestamp = timestamp.replace("-", "")
            return f"DELETE FROM {table}{timestamp} WHERE {' AND '.join(bounds)}"
        if choice < 0.2:
            if not row:
                timestamp = timestamp.replace("-", "")
            return f"DELETE FROM {table}{timestamp} WHERE {where}"
        if choice < 0.3 and written:
            column = r.choice(written)
            target = only_key if column in schema.static else where
            return f"DELETE {quote_name(column.name)} FROM {table}{timestamp} WHERE {target}"
        if choice < 0.6 and written:
            column = r.choice(written)
            target = only_key if column in schema.static else where
            return f"UPDATE {table}{both} SET {self._assignment(column)} WHERE {target}"
        chosen = [c for c in written if r.random() < r.choice([0.2, 0.8])]
        names = [c.name for c in schema.partition_key + schema.clustering] + [c.name for c in chosen]
        values = key + row + ["null" if r.random() < 0.05 else self.literal(c.type) for c in chosen]
        return f"INSERT INTO {table} ({', '.join(map(quote_name, names))}) VALUES ({', '.join(values)}){both}"

    def _assignment(self, column: Column) -> str:
        r, name, cql_type = self.random, quote_name(column.name), column.type
        if is_complex(cql_type) and r.random() < 0.7:
            if isinstance(cql_type, Udt):
                field, field_type = r.choice(cql_type.fields)
                return f"{name}.{quote_name(field)} = {self._maybe_null(field_type)}"
            assert isinstance(cql_type, Collection)
            if cql_type.kind == "map":
                key = self.literal(cql_type.arguments[0], key=True)
                return r.choice(
                    [
                        f"{name}[{key}] = {self._maybe_null(cql_type.arguments[1])}",
                        f"{name} = {name} + {self.literal(cql_type)}",
                    ]
                )
            # A list's removal reads before it writes, and then depends on the time.
            sign = "-" if cql_type.kind == "set" and r.random() < 0.4 else "+"
            return f"{name} = {name} {sign} {self.literal(cql_type)}"
        return f"{name} = {self.literal(cql_type)}"


def _text(r: random.Random) -> str:
    return (
        "'"
        + "".join(r.choice(["a", "b", "Z", "0", " ", "\u00e9", "\u4e2d", "''", "\x00"]) for _ in range(r.randint(0, 6)))
        + "'"
    )


def _integer(bits: int) -> Callable[[random.Random], str]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return lambda r: str(
        r.choice([0, 1, -1, low, high, r.randint(low, high), r.randint(max(low, -300), min(high, 300))])
    )


def _float(r: random.Random) -> str:
    return r.choice(["0.0", "-0.0", "1.5", "-2.25", "NaN", "Infinity", "-Infinity", f"{r.uniform(-1e6, 1e6):.4f}"])


def _timeuuid(r: random.Random) -> str:
    return str(
        UUID(
            fields=(
                r.getrandbits(32),
                r.getrandbits(16),
                0x1000 | r.getrandbits(12),
                0x80 | r.getrandbits(6),
                r.getrandbits(8),
                r.getrandbits(48),
            )
        )
    )


# Milliseconds that fit into a timestamp of CQL, and not into one of microseconds.
_BEYOND = ((1 << 63) - 1, -(1 << 63), 9_223_372_036_854_776, -9_223_372_036_854_776)

_LITERALS: dict[str, Callable[[random.Random], str]] = {
    "ascii": lambda r: "'" + "".join(r.choice("abcXYZ 09") for _ in range(r.randint(0, 6))) + "'",
    "bigint": _integer(64),
    "blob": lambda r: "0x" + r.randbytes(r.randint(0, 6)).hex() + r.choice(["", "00", "0000"]),
    "boolean": lambda r: r.choice(["true", "false"]),
    "date": lambda r: str(r.choice([0, 2**31, 2**32 - 1, r.getrandbits(32)])),
    "decimal": lambda r: r.choice(
        [
            "0",
            "0.00",
            "-1.10",
            "1.1",
            "1E+30",
            "-1E-30",
            "99.9",
            "-99.99",
            f"{r.randint(-(10**25), 10**25)}E{r.randint(-40, 40)}",
        ]
    ),
    "double": _float,
    "duration": lambda r: r.choice(["1mo2d3ns", "-2y3mo", "10h", "1d", "-1ns", "89h4m48s"]),
    "float": _float,
    "inet": lambda r: r.choice(["'127.0.0.1'", "'::1'", "'2001:db8::ff00:42:8329'", f"'10.0.0.{r.randint(0, 255)}'"]),
    "int": _integer(32),
    "smallint": _integer(16),
    "text": _text,
    "time": lambda r: f"'{r.randint(0, 23):02d}:10:11.{r.randint(0, 999999999):09d}'",
    "timestamp": lambda r: str(
        r.choice([0, -1, 1_700_000_000_123, -62_135_596_800_000, *_BEYOND, r.randint(-(10**14), 10**14)])
    ),
    "timeuuid": _timeuuid,
    "tinyint": _integer(8),
    "uuid": lambda r: r.choice(
        [_timeuuid(r), str(UUID(int=r.getrandbits(128), version=4)), str(UUID(int=r.getrandbits(128)))]
    ),
    "varint": lambda r: str(
        r.choice([0, -1, 127, 128, -128, 2**63, -(2**63) - 1, r.randint(-(10**30), 10**30), r.randint(-(2**56), 2**56)])
    ),
}


def create_udts() -> list[str]:
    """Statements that create the generator's keyspace and types."""
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    statements = [f"CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}"]
    for udt in UDTS.values():
        fields = ", ".join(f"{quote_name(n)} {t}" for n, t in udt.fields)
        statements.append(f"CREATE TYPE {KEYSPACE}.{udt.name} ({fields})")
    return statements
