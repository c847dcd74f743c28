"""Random statements that ScyllaDB takes, of all kinds, and options of tables.

Write times come from the clock, because with CDC, ScyllaDB accepts only times near its own. Cassandra accepts these
parts of statements, but ScyllaDB (branch-2026.1) refuses them, so they are avoided:

- a write time before the streams, or more than 5 s ahead (`cdc/metadata.cc`);
- `IF NOT EXISTS` and `IF EXISTS` in ALTER (`cql3/Cql.g`);
- a column that is added again less than 5 s after it was dropped (`cdc/log.cc`);
- literals of user-defined types for clustering columns in descending order (`cql3/expr/prepare_expr.cc`);
- literals of `blob` for clustering columns in descending order in tuples, such as `(c0, c1) > (0x00, 1)`: it takes the
  `0x` for digits (`cql3/expr/prepare_expr.cc`);
- empty elements of vectors (`types/vector.hh`).
"""

import random
import re
import time
from collections.abc import Sequence
from dataclasses import replace

from cassandra import InvalidRequest

from tests.support.generate import Generator
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, Udt, Vector, is_complex, quote_name, quote_table

SECOND = 1_000_000
# How far ahead of the clock a write time may be, in seconds; ScyllaDB takes 5.
AHEAD_SECONDS = 2

# Names that have to be quoted in statements, or that other parts of Writetime use.
NAMES = ["Mixed", "select", "key", "a b", 'quo"ted', "token", "position", "écran", "é", "$", "1", "end.x"]
# Partition keys or clusterings, as literals.
Places = Sequence[list[str]]
_SLICES = (">", ">=", "<", "<=")


# Why the database may refuse a statement of the generator, which does not know which keys are empty, nor how long a
# list is, nor whether conditions of a batch concern the same row; and a field that another thread adds can be read a
# moment before it can be written.
_REFUSALS = ("may not be empty", "Unknown field", "out of bound", "list which is null", "Cannot mix IF")
# Forms of not-a-number other than that of the literal NaN. They are equal. Negative ones are left out: as clusterings,
# they end a ScyllaDB 2026.1.11 that writes SSTables of format ms (an assertion in `sstables/trie/trie_writer.cc`).
_NOT_NUMBERS: dict[CqlType, str] = {
    Native("float"): "blobasfloat(0x7fc00001)",
    Native("double"): "blobasdouble(0x7ff8000000000001)",
}


def may_be_refused(statement: str, error: InvalidRequest) -> bool:
    """Return whether the database may refuse a statement of the generator. An empty range, of a deletion, alone or in a
    batch, is refused with several texts.
    """
    return "DELETE" in statement or any(text in str(error) for text in _REFUSALS)


class LiveGenerator(Generator):
    """Makes statements that ScyllaDB takes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._ttls = [1, 100_000]
        self._ttls_made = 0

    def literal(self, cql_type: CqlType, *, key: bool = False) -> str:
        """Make a literal, in vectors without empty elements."""
        if cql_type in _NOT_NUMBERS and self.random.random() < 0.1:
            return _NOT_NUMBERS[cql_type]
        if isinstance(cql_type, Vector):
            elements = [self.literal(cql_type.element, key=True) for _ in range(cql_type.dimension)]
            return "[" + ", ".join("'empty'" if element == "''" else element for element in elements) + "]"
        return super().literal(cql_type, key=key)

    def live_schema(self, keyspace: str, name: str, **shape: int) -> TableSchema:
        """Make a table of a keyspace, with clustering columns of user-defined types in ascending order."""
        made = self.schema(name, **shape)
        clustering = tuple(replace(c, reversed=c.reversed and not isinstance(c.type, Udt)) for c in made.clustering)
        return replace(made, keyspace=keyspace, clustering=clustering)

    def time(self) -> int:
        """Return a write time near to now, in microseconds, that others may have, too."""
        now = time.time_ns() // 1000
        if self.random.random() < 0.05:
            return now + AHEAD_SECONDS * SECOND
        return now // SECOND * SECOND + self.random.choice([0, 0, 1, 2])

    def _one(self, schema: TableSchema, key: list[str], row: list[str]) -> str:
        (made,) = self.writes(schema, 1, ([key], [row]))
        return self._timed(made)

    def _timed(self, statement: str) -> str:
        made = re.sub(r"TIMESTAMP -?\d+", lambda _: f"TIMESTAMP {self.time()}", statement)
        return re.sub(r"TTL (\d+)", self._ttl, made)

    def _ttl(self, match: re.Match[str]) -> str:
        # When a cell expires is not logged, so of two with the same time and TTL it is not known which is the later.
        self._ttls_made += 1
        return match[0] if match[1] == "1" else f"TTL {100_000 + 1000 * self._ttls_made}"

    def _if_exists(self, schema: TableSchema, key: list[str], rows: Places) -> str:
        """Make an INSERT or UPDATE with a condition; such have no write time of their own."""
        while True:
            made = self._one(schema, key, self.random.choice(rows))
            if made.startswith(("INSERT", "UPDATE")):
                without = re.sub(r" USING TIMESTAMP -?\d+(?: AND (TTL \d+))?", _without_time, made)
                condition = "IF NOT EXISTS" if made.startswith("INSERT") else "IF EXISTS"
                # The options of an INSERT come after its condition, and those of an UPDATE before.
                found = re.search(r" USING TTL \d+$", without) if made.startswith("INSERT") else None
                if found:
                    return f"{without[: found.start()]} {condition}{found[0]}"
                return f"{without} {condition}"

    def _of_list(self, schema: TableSchema, column: Column, key: list[str], row: list[str]) -> str:
        """Make a statement that reads a list before it writes to it."""
        assert isinstance(column.type, Collection)
        table = f"{schema.keyspace}.{schema.name}"
        name, element = quote_name(column.name), self.literal(column.type.arguments[0], key=True)
        columns = schema.partition_key + schema.clustering
        where = " AND ".join(f"{quote_name(c.name)} = {v}" for c, v in zip(columns, key + row, strict=True))
        using = f" USING TIMESTAMP {self.time()}"
        return self.random.choice(
            [
                f"UPDATE {table}{using} SET {name}[0] = {element} WHERE {where}",
                f"UPDATE {table}{using} SET {name} = {name} - [{element}] WHERE {where}",
                f"UPDATE {table}{using} SET {name} = [{element}] + {name} WHERE {where}",
                f"DELETE {name}[0] FROM {table}{using} WHERE {where}",
            ]
        )

    def renamed(self, schema: TableSchema) -> TableSchema:
        """Give some columns of a table other names."""
        names = iter(self.random.sample(NAMES, len(NAMES)))

        def some(columns: tuple[Column, ...]) -> tuple[Column, ...]:
            return tuple(
                Column(next(names, c.name) if self.random.random() < 0.3 else c.name, c.type, c.reversed)
                for c in columns
            )

        return replace(
            schema,
            partition_key=some(schema.partition_key),
            clustering=some(schema.clustering),
            static=some(schema.static),
            regular=some(schema.regular),
        )

    def statement(self, schema: TableSchema, keys: Places, rows: Places) -> str:
        """Make one statement, or a batch, for some of these places."""
        r = self.random
        kind = r.random()
        key, row = r.choice(keys), r.choice(rows)
        if kind < 0.1:
            makers = [self._if_exists, self._if_values, self._if_batch]
            return r.choice(makers)(schema, key, rows)
        if kind < 0.16 and (lists := [c for c in schema.regular if _is_list(c)]):
            return self._of_list(schema, r.choice(lists), key, row)
        if kind < 0.3:
            statements = [self._any(schema, keys, rows) for _ in range(r.randint(2, 5))]
            return f"BEGIN {r.choice(['', 'UNLOGGED '])}BATCH {'; '.join(statements)}; APPLY BATCH"
        return self._any(schema, keys, rows)

    def _using(self, *, ttl: bool = True) -> str:
        """Make the options of a statement."""
        r, made = self.random, []
        if r.random() < 0.7:
            made.append(f"TIMESTAMP {self.time()}")
        if ttl and r.random() < 0.4:
            made.append(r.choice(["TTL 0", self._new_ttl()]))
        if r.random() < 0.1:
            made.append("TIMEOUT 20s")
        r.shuffle(made)
        return " USING " + " AND ".join(made) if made else ""

    def _new_ttl(self) -> str:
        """Make the option of a TTL: short, or one that no other cell has."""
        self._ttls_made += 1
        return self.random.choice(["TTL 1", "TTL 2", f"TTL {100_000 + 1000 * self._ttls_made}"])

    def _any(self, schema: TableSchema, keys: Places, rows: Places) -> str:
        r = self.random
        makers = [self._set_several] * 10 + [self._insert] * 8 + [self._delete_parts] * 3
        makers += [self._delete_many, self._delete_slice, self._insert_json, self._insert_json] + [self._one_of] * 3
        return r.choice(makers)(schema, keys, rows)

    def _one_of(self, schema: TableSchema, keys: Places, rows: Places) -> str:
        return self._one(schema, self.random.choice(keys), self.random.choice(rows))

    def _where(self, schema: TableSchema, key: list[str], row: list[str] | None) -> str:
        columns = schema.partition_key + (() if row is None else schema.clustering)
        return " AND ".join(f"{quote_name(c.name)} = {v}" for c, v in zip(columns, key + (row or []), strict=True))

    def _insert(self, schema: TableSchema, keys: Places, rows: Places) -> str:
        r = self.random
        columns = [c for c in schema.static + schema.regular if r.random() < r.choice([0, 0.3, 0.9])]
        names = [c.name for c in (*schema.partition_key, *schema.clustering, *columns)]
        values = [*r.choice(keys), *r.choice(rows), *(self._value(c) for c in columns)]
        return (
            f"INSERT INTO {quote_table(schema.full_name)} ({', '.join(map(quote_name, names))}) "
            f"VALUES ({', '.join(values)}){self._using()}"
        )

    def _insert_json(self, schema: TableSchema, keys: Places, rows: Places) -> str:
        made = self._insert(schema, keys, rows)
        simple = {"int", "bigint", "smallint", "tinyint"}
        columns = schema.partition_key + schema.clustering
        if not all(str(c.type) in simple for c in columns):
            return made
        values = [*self.random.choice(keys), *self.random.choice(rows)]
        fields = [(c.name, v) for c, v in zip(columns, values, strict=True)]
        fields += [(c.name, "null") for c in schema.static + schema.regular if self.random.random() < 0.2]
        names = {name: f'\\"{name}\\"' if not (name.islower() and name.isidentifier()) else name for name, _ in fields}
        if any('"' in name for name, _ in fields):
            return made
        body = ", ".join(f'"{names[name]}": {value}' for name, value in fields)
        default = self.random.choice(["", " DEFAULT UNSET", " DEFAULT NULL"])
        return f"INSERT INTO {quote_table(schema.full_name)} JSON '{{{body}}}'{default}{self._using()}"

    def _value(self, column: Column) -> str:
        return "null" if self.random.random() < 0.15 else self.literal(column.type)

    def _set_several(self, schema: TableSchema, keys: Places, rows: Places) -> str:
        r = self.random
        part = r.choice([p for p in (schema.static, schema.regular, schema.static + schema.regular) if p] or [()])
        if not part:
            return self._insert(schema, keys, rows)
        chosen = r.sample(part, r.randint(1, min(4, len(part))))
        only_static = all(c in schema.static for c in chosen)
        where = self._where(schema, r.choice(keys), None if only_static else r.choice(rows))
        sets = ", ".join(self._assigned(c) for c in chosen)
        return f"UPDATE {quote_table(schema.full_name)}{self._using()} SET {sets} WHERE {where}"

    def _assigned(self, column: Column) -> str:
        r, name, cql_type = self.random, quote_name(column.name), column.type
        if not is_complex(cql_type) or r.random() < 0.3:
            return f"{name} = {self._value(column)}"
        if isinstance(cql_type, Udt):
            field, field_type = r.choice(cql_type.fields)
            value = "null" if r.random() < 0.3 else self.literal(field_type, key=True)
            return f"{name}.{quote_name(field)} = {value}"
        assert isinstance(cql_type, Collection)
        match cql_type:
            case Collection("map", (key, _)):
                removed = "{" + self.literal(key, key=True) + "}"
                return r.choice([f"{name} = {name} - {removed}", self._assignment(column)])
            case Collection("set", _):
                return f"{name} = {name} {r.choice('+-')} {self.literal(cql_type)}"
        value = self.literal(cql_type)
        return r.choice([f"{name} = {name} + {value}", f"{name} = {value} + {name}", f"{name} = {name} - {value}"])

    def _delete_parts(self, schema: TableSchema, keys: Places, rows: Places) -> str:
        """Delete columns, elements and fields."""
        r = self.random
        columns = schema.static + schema.regular
        if not columns:
            return self._delete_many(schema, keys, rows)
        chosen = r.sample(columns, r.randint(1, min(3, len(columns))))
        only_static = all(c in schema.static for c in chosen)
        row = None if only_static else r.choice(rows)
        parts = ", ".join(self._part(c) for c in chosen)
        where = self._where(schema, r.choice(keys), row)
        return f"DELETE {parts} FROM {quote_table(schema.full_name)}{self._using(ttl=False)} WHERE {where}"

    def _part(self, column: Column) -> str:
        name = quote_name(column.name)
        if is_complex(column.type) and self.random.random() < 0.6:
            match column.type:
                case Udt(_, _, fields):
                    return f"{name}.{quote_name(self.random.choice(fields)[0])}"
                case Collection("list"):
                    return f"{name}[0]"
                case Collection(_, (key, *_)):
                    return f"{name}[{self.literal(key, key=True)}]"
        return name

    def _delete_many(self, schema: TableSchema, keys: Places, rows: Places) -> str:
        """Delete several partitions, rows or ranges by lists of values."""
        r = self.random
        *first, last = schema.partition_key
        key = r.choice(keys)
        if r.random() < 0.3 or not schema.clustering:
            values = ", ".join(k[-1] for k in r.sample(list(keys), 2))
            parts = [f"{quote_name(c.name)} = {v}" for c, v in zip(first, key, strict=False)]
            parts.append(f"{quote_name(last.name)} IN ({values})")
        else:
            n = r.randint(1, len(schema.clustering))
            picked = r.sample(list(rows), min(3, len(rows)))
            parts = [self._where(schema, key, None)]
            if r.random() < 0.5 and _may_be_in_tuples(schema):
                names = ", ".join(quote_name(c.name) for c in schema.clustering[:n])
                tuples = ", ".join(f"({', '.join(row[:n])})" for row in picked)
                parts.append(f"({names}) IN ({tuples})")
            else:
                parts += [
                    f"{quote_name(c.name)} = {v}" for c, v in zip(schema.clustering[: n - 1], picked[0], strict=False)
                ]
                values = ", ".join(row[n - 1] for row in picked)
                parts.append(f"{quote_name(schema.clustering[n - 1].name)} IN ({values})")
        where = " AND ".join(parts)
        return f"DELETE FROM {quote_table(schema.full_name)}{self._using(ttl=False)} WHERE {where}"

    def _delete_slice(self, schema: TableSchema, keys: Places, rows: Places) -> str:
        """Delete a range whose bounds are several columns."""
        r = self.random
        if not schema.clustering or not _may_be_in_tuples(schema):
            return self._one_of(schema, keys, rows)
        low, high = r.choice(rows), r.choice(rows)
        n, m = (r.randint(1, len(schema.clustering)) for _ in range(2))
        parts = [self._where(schema, r.choice(keys), None)]

        def bound(count: int, sign: str, row: list[str]) -> str:
            names = ", ".join(quote_name(c.name) for c in schema.clustering[:count])
            return f"({names}) {sign} ({', '.join(row[:count])})"

        if r.random() < 0.8:
            parts.append(bound(n, r.choice(_SLICES[:2]), low))
        if len(parts) == 1 or r.random() < 0.7:
            parts.append(bound(m, r.choice(_SLICES[2:]), high))
        where = " AND ".join(parts)
        return f"DELETE FROM {quote_table(schema.full_name)}{self._using(ttl=False)} WHERE {where}"

    def _if_values(self, schema: TableSchema, key: list[str], rows: Places) -> str:
        """Make an UPDATE or DELETE with a condition on a value."""
        r = self.random
        columns = schema.regular or schema.static
        if not columns:
            return self._if_exists(schema, key, rows)
        column = r.choice(columns)
        value = r.choice(["null", self.literal(column.type)])
        condition = f"{quote_name(column.name)} {r.choice(['=', '!=', '!='])} {value}"
        table = quote_table(schema.full_name)
        where = self._where(schema, key, r.choice(rows) if schema.regular else None)
        if schema.regular and r.random() < 0.1:
            return f"DELETE FROM {table} WHERE {where} IF {condition}"
        using = f" USING {self._new_ttl()}" if r.random() < 0.2 else ""
        return f"UPDATE {table}{using} SET {self._assigned(r.choice(columns))} WHERE {where} IF {condition}"

    def _if_batch(self, schema: TableSchema, key: list[str], rows: Places) -> str:
        made = [self._if_exists(schema, key, rows)]
        made += [self._if_values(schema, key, rows) for _ in range(self.random.randint(0, 3))]
        return f"BEGIN BATCH {'; '.join(made)}; APPLY BATCH"


class StoredGenerator(LiveGenerator):
    """Makes statements for tables without CDC: with few write times, also negative ones, and few TTLs, so that ties are
    frequent."""

    def time(self) -> int:
        return self.random.choice([-5, 0, 1, 1000, 1000, 2000, 2001, 1_700_000_000_000_000])

    def _new_ttl(self) -> str:
        return self.random.choice(["TTL 1000", "TTL 86400"])

    def _ttl(self, match: re.Match[str]) -> str:
        del match
        return self._new_ttl()


def _without_time(match: re.Match[str]) -> str:
    return f" USING {match[1]}" if match[1] else ""


def _may_be_in_tuples(schema: TableSchema) -> bool:
    return not any(c.reversed and "blob" in str(c.type) for c in schema.clustering)


def _is_list(column: Column) -> bool:
    return isinstance(column.type, Collection) and column.type.kind == "list" and is_complex(column.type)


def with_options(create: str, options: Sequence[str]) -> str:
    """Return a CREATE TABLE with more options."""
    joiner = " AND " if " WITH " in create else " WITH "
    return create + (joiner + " AND ".join(options) if options else "")


def table_options(r: random.Random) -> list[str]:
    """Make options of a table that change how it is stored, and when its data expires."""
    strategies = [
        "{'class': 'SizeTieredCompactionStrategy', 'min_threshold': 2}",
        "{'class': 'LeveledCompactionStrategy', 'sstable_size_in_mb': 1}",
        "{'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'DAYS', 'compaction_window_size': 1}",
        "{'class': 'IncrementalCompactionStrategy'}",
        "{'class': 'NullCompactionStrategy'}",
    ]
    modes = ["timeout", "disabled", "immediate"]
    options = [
        f"compaction = {r.choice(strategies)}",
        f"default_time_to_live = {r.choice([100_000, 200_000])}",
        f"tombstone_gc = {{'mode': '{r.choice(modes)}'}}",
        f"gc_grace_seconds = {r.choice([0, 1, 1000])}",
    ]
    return [option for option in options if r.random() < 0.4]
