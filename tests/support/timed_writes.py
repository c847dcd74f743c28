"""Writes of every kind to one table, at chosen times, and the answers of the database with write times and TTLs."""

import random
import time
from dataclasses import dataclass
from typing import Self

from cassandra.cluster import Session

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

    def assert_same(self, wanted: "Answers") -> None:
        assert self.rows == wanted.rows
        for one, other in zip(self.expiries, wanted.expiries, strict=True):
            assert (one is None) == (other is None)
            assert one is None or other is None or (one[0] <= other[1] and other[0] <= one[1])
