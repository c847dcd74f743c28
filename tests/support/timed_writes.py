"""Writes of every kind to one table, at chosen times, and the answers of the database with write times and TTLs."""

import random
import time
from dataclasses import dataclass
from typing import Self

from cassandra.cluster import Session

from tests.support.chosen_seconds import rows_at
from writetime.schema.table import TableSchema
from writetime.schema.types import is_complex, quote_name, quote_table

COLUMNS = """(k int, c int, d text, s text STATIC, v int, w text, l list<int>, m map<text, int>, e set<int>,
 f frozen<list<int>>, PRIMARY KEY (k, c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC)"""
_SELECT = (
    "SELECT k, c, d, s, v, w, l, m, e, f,"
    " writetime(s), ttl(s), writetime(v), ttl(v), writetime(w), ttl(w), writetime(f) FROM {}"
)


def statements(table: str, chooser: random.Random, start: int = 1_700_000_000_000_000) -> list[str]:
    """Writes of every kind, at chosen times, some of which are deleted again."""
    found = []
    for _ in range(600):
        k, c, d, n = chooser.randrange(6), chooser.randrange(5), chooser.choice("ab"), chooser.randrange(100)
        at = f"USING TIMESTAMP {start + chooser.randrange(5000)}"
        ttl = chooser.choice(["", "", " AND TTL 500000"])
        row = f"k = {k} AND c = {c} AND d = '{d}'"
        found.append(
            chooser.choice(
                [
                    f"INSERT INTO {table} (k, c, d, v, w, f) VALUES ({k}, {c}, '{d}', {n}, 'w{n}', [{n}, 1]) {at}{ttl}",
                    f"INSERT INTO {table} (k, c, d, l, m) VALUES ({k}, {c}, '{d}', [{n}], {{'a': {n}}}) {at}",
                    f"INSERT INTO {table} (k, c, d, e) VALUES ({k}, {c}, '{d}', {{{n}, 1}}) {at}",
                    f"UPDATE {table} {at}{ttl} SET v = {n}, l = l + [{n}], m['x{n % 3}'] = {n} WHERE {row}",
                    f"UPDATE {table} {at}{ttl} SET e = e + {{{n}}} WHERE {row}",
                    f"UPDATE {table} {at} SET s = 's{n}' WHERE k = {k}",
                    f"DELETE v, m FROM {table} {at} WHERE {row}",
                    f"DELETE m['a'] FROM {table} {at} WHERE {row}",
                    f"DELETE FROM {table} {at} WHERE {row}",
                    f"DELETE FROM {table} {at} WHERE k = {k} AND c > {c}",
                    f"DELETE FROM {table} {at} WHERE k = {k} AND c = {c}",
                    f"DELETE FROM {table} {at} WHERE k = {k} AND c >= {c} AND c < {c + 2}",
                    *([f"DELETE FROM {table} {at} WHERE k = {k}"] if n == 0 else []),
                ]
            )
        )
    return found


@dataclass(frozen=True)
class Answers:
    """The rows of a table with write times, and for each TTL the seconds in which the cell may expire, None without."""

    rows: list[dict[str, str]]
    expiries: list[tuple[float, float] | None]

    @classmethod
    def of(cls, session: Session, table: str) -> Self:
        start = time.time()
        found = [row._asdict() for row in session.execute(_SELECT.format(table))]
        # The database answers with whole seconds.
        end = time.time() + 1
        ttls = [value for row in found for name, value in row.items() if name.startswith("ttl")]
        rows = [{n: repr(v) for n, v in row.items() if not n.startswith("ttl")} for row in found]
        return cls(rows, [None if ttl is None else (start + ttl, end + ttl) for ttl in ttls])

    @classmethod
    def at(cls, session: Session, schema: TableSchema, second: int, *, of_parts: bool) -> Self:
        """Return what a table of any schema answers as of a second, by a session of `ProtocolAt`. Rows have the TTLs
        that remain then, and `of_parts` the write times and TTLs of the parts of collections and UDTs, too, of which
        Cassandra reports them from 5.0 on.
        """
        timed = [c.name for c in schema.static + schema.regular if of_parts or not is_complex(c.type)]
        names = [quote_name(c.name) for c in schema.columns]
        names += [f"{function}({quote_name(name)})" for name in timed for function in ("writetime", "ttl")]
        found = rows_at(session, f"SELECT {', '.join(names)} FROM {quote_table(schema.full_name)}", second)
        return cls([dict(zip(names, map(repr, row), strict=True)) for row in found], [])

    def assert_same(self, wanted: "Answers") -> None:
        more, fewer = (
            [row for row in ours if row not in theirs]
            for ours, theirs in ((self.rows, wanted.rows), (wanted.rows, self.rows))
        )
        assert not more, f"{len(more)} rows are other ones, or more, such as\n{more[0]}, and not\n{fewer[:1]}"
        assert not fewer, f"{len(fewer)} rows are missing, such as\n{fewer[0]}"
        assert self.rows == wanted.rows, "the rows have another order"
        for one, other in zip(self.expiries, wanted.expiries, strict=True):
            assert (one is None) == (other is None)
            assert one is None or other is None or (one[0] <= other[1] and other[0] <= one[1])
