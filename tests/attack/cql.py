"""Random tables with all types and odd names, and statements that write to them in each way that CQL has.

`tests.support.generate` makes the common statements. This module adds unusual ones: names in quotes, text that is not
UTF-8, write times at the ends of their range, list operations by index, conditions, several keys at once, and values of
wrong types, which the database refuses.
"""

import re
from dataclasses import replace

from tests.support.generate import Generator, Places
from tests.support.odd_texts import PIECES
from tests.support.tables import counted, counter_writes
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, is_complex, quote_name, quote_table

_NAMES = [
    "KEY",
    "Kind",
    "END",
    "token_bucket",
    "Token_Bucket",
    "writetime_row",
    "name",
    "Name",
    "a.value",
    "marker.expiry",
]
_NAMES += [
    "a b",
    "a_x20_b",
    "1st",
    'quo"te',
    "it's",
    "semi;colon",
    "select",
    "écran",
    "ÉCRAN",
    "straße",
    "ı",
    "İ",
    "`tick`",
]
_NAMES += [
    "key",
    "token",
    "kind",
    "position",
    "end",
    "marker",
    "tombstone",
    "origin",
    "column_key",
    "(a, b)",
    "--",
    "/*",
    "?",
]
# The pieces that Cassandra accepts as text although they are not UTF-8, and those that have a meaning in the lake.
_TAKEN = [b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xf7\xbf\xbf\xbf", "\ufdd0ed".encode()]
_EDGES = [(1 << 63) - 1, (1 << 63) - 2, 1 << 62, 253_402_300_800_000_000, 4_102_444_800_000_000]
_TIMESTAMP = re.compile(r"TIMESTAMP -?\d+")


class OddGenerator(Generator):
    """Makes tables and statements that are legal, or are refused by the database."""

    def __init__(self, seed: int, keyspace: str) -> None:
        super().__init__(seed)
        self._keyspace = keyspace
        self._ttls = [100_000, 200_000, 630_720_000]

    def odd_schema(self, name: str) -> TableSchema:
        """Make a table, half of whose columns have odd names."""
        made = self.schema(
            name, clusterings=self.random.choice([0, 1, 2, 4]), regulars=self.random.choice([0, 2, 5, 9])
        )
        names = self.random.sample(_NAMES, len(_NAMES))

        def renamed(columns: tuple[Column, ...]) -> tuple[Column, ...]:
            return tuple(replace(c, name=fitting(c)) if self.random.random() < 0.5 else c for c in columns)

        def fitting(column: Column) -> str:
            # Cassandra loses deletions of collections under names that do not begin in ASCII: see docs/semantics.md.
            name = next(n for n in names if n[0].isascii() or not is_complex(column.type))
            names.remove(name)
            return name

        return replace(
            made,
            keyspace=self._keyspace,
            partition_key=renamed(made.partition_key),
            clustering=renamed(made.clustering),
            static=renamed(made.static),
            regular=renamed(made.regular),
        )

    def literal(self, cql_type: CqlType, *, key: bool = False) -> str:
        """Make a literal, now and then of text that Cassandra takes and that is not UTF-8."""
        if cql_type == Native("text") and self.random.random() < 0.15:
            pieces = PIECES if self.random.random() < 0.1 else _TAKEN
            data = b"".join(self.random.choices(pieces, k=self.random.choice([1, 1, 3])))
            return f"blob_as_text(0x{data.hex()})"
        return super().literal(cql_type, key=key)

    def statements(self, schema: TableSchema, count: int) -> list[str]:
        """Make statements; a few of them are refused."""
        places = self.places(schema)
        return [self._statement(schema, places) for _ in range(count)]

    def counters(self, table: str, count: int) -> list[str]:
        """Make statements for a table of counters like `tests.support.tables.counted`."""
        own = quote_table(table)
        return [statement.replace(counted().full_name, own) for statement in counter_writes(self, count)]

    def _statement(self, schema: TableSchema, places: Places) -> str:
        r = self.random
        kind = r.random()
        if kind < 0.08 and (lists := [c for c in schema.regular if _is_list(c)]):
            return self._of_list(schema, r.choice(lists), places)
        if kind < 0.14:
            return self._conditional(schema, places)
        if kind < 0.2:
            return self._of_several(schema, places)
        if kind < 0.28:
            made = [self._one(schema, places) for _ in range(r.randint(2, 6))]
            return f"BEGIN {r.choice(['', 'UNLOGGED '])}BATCH {'; '.join(made)}; APPLY BATCH"
        if kind < 0.32:
            return self._wrong(schema, places)
        return self._one(schema, places)

    def _one(self, schema: TableSchema, places: Places) -> str:
        (made,) = self.writes(schema, 1, places)
        if self.random.random() < 0.1:
            # Cassandra cannot read a deletion of a partition before 1970 again itself: see `Generator`.
            edges = _EDGES if made.startswith("DELETE") else [*_EDGES, -(1 << 63) + 1, -(1 << 62)]
            made = _TIMESTAMP.sub(lambda _: f"TIMESTAMP {self.random.choice(edges)}", made)
        return made

    def _where(self, schema: TableSchema, places: Places, *, row: bool = True) -> str:
        keys, rows = places
        values = [*self.random.choice(keys), *(self.random.choice(rows) if row else [])]
        columns = schema.partition_key + (schema.clustering if row else ())
        return " AND ".join(f"{quote_name(c.name)} = {v}" for c, v in zip(columns, values, strict=True))

    def _of_list(self, schema: TableSchema, column: Column, places: Places) -> str:
        """Read a list before writing it, as operations by index and value do; or put something before it."""
        assert isinstance(column.type, Collection)
        r, name, table = self.random, quote_name(column.name), quote_table(schema.full_name)
        (element,) = column.type.arguments
        where = self._where(schema, places)
        value = self.literal(element, key=True)
        return r.choice(
            [
                f"UPDATE {table} SET {name} = [{value}] + {name} WHERE {where}",
                f"UPDATE {table} SET {name} = {name} - [{value}] WHERE {where}",
                f"UPDATE {table} SET {name}[{r.randrange(3)}] = {value} WHERE {where}",
                f"UPDATE {table} SET {name}[0] = null WHERE {where}",
                f"DELETE {name}[{r.randrange(2)}] FROM {table} WHERE {where}",
            ]
        )

    def _conditional(self, schema: TableSchema, places: Places) -> str:
        made = self._one(schema, places)
        made = re.sub(r" USING TIMESTAMP -?\d+( AND)?", lambda found: " USING" if found[1] else "", made)
        if made.startswith("INSERT"):
            before, using, after = made.partition(" USING TTL ")
            return f"{before} IF NOT EXISTS{using}{after}"
        return f"{made} IF EXISTS"

    def _of_several(self, schema: TableSchema, places: Places) -> str:
        """Delete or update several partitions, or several rows, or clear a row by nulls."""
        r, table = self.random, quote_table(schema.full_name)
        last = schema.partition_key[-1]
        others = [f"{quote_name(c.name)} = {v}" for c, v in zip(schema.partition_key[:-1], places[0][0], strict=False)]
        several = ", ".join({key[-1] for key in r.sample(places[0], 2)})
        where = " AND ".join([*others, f"{quote_name(last.name)} IN ({several})"])
        if schema.clustering and r.random() < 0.6:
            where += f" AND {quote_name(schema.clustering[0].name)} IN ({', '.join(row[0] for row in places[1][:3])})"
            return f"DELETE FROM {table} WHERE {where}"
        if schema.regular and r.random() < 0.5:
            nulls = ", ".join(f"{quote_name(c.name)} = null" for c in schema.regular)
            return f"UPDATE {table} SET {nulls} WHERE {self._where(schema, places)}"
        return f"DELETE FROM {table} WHERE {where}"

    def _wrong(self, schema: TableSchema, places: Places) -> str:
        """Make input that the database usually refuses."""
        r, table = self.random, quote_table(schema.full_name)
        made = self._one(schema, places)
        column = quote_name(r.choice(schema.columns).name)
        where = self._where(schema, places)
        literals = ["'x'", "1", "null", "[1]", "{1: 2}", "0xff", "NaN", "9" * 400, "'" + "x" * 70_000 + "'", "()"]
        return r.choice(
            [
                made.replace("TIMESTAMP ", f"TIMESTAMP {1 << 63}", 1),
                made.replace("WHERE", "WHERE WHERE", 1),
                made[: r.randrange(len(made))],
                f"UPDATE {table} SET {column} = {r.choice(literals)} WHERE {where}",
                f"UPDATE {table} USING TTL {r.choice([-1, 0, 630_720_001])} SET {column} = null WHERE {where}",
                f"DELETE {column} FROM {table} WHERE {where}",
                f"INSERT INTO {table} ({column}) VALUES ({r.choice(literals)})",
            ]
        )


def _is_list(column: Column) -> bool:
    return isinstance(column.type, Collection) and column.type.kind == "list" and is_complex(column.type)
