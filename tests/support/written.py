"""Random writes to a small table, their CQL, their changes, and the resulting rows, by a simple model of CQL.

The model applies all writes in the order of their times. These are all different, so the last write wins.
"""

import random
from dataclasses import dataclass
from typing import Any

from writetime.changes.position import AFTER, AT, BEFORE, PARTITION_POSITION, STATIC_POSITION, position_encoder
from writetime.schema.cql import parse_table
from writetime.schema.serialise import serialiser
from writetime.schema.types import Native
from writetime.storage.kernel.primitives import token

SCHEMA = parse_table("CREATE TABLE shop.wide (id int, n int, s text static, v text, w int, PRIMARY KEY (id, n))")
COLUMNS = ("id", "n", "s", "v", "w")
PARTITIONS, ROWS = 60, 12
SECOND = 1_000_000
_KINDS = ("insert", "insert", "update", "update", "static", "cell", "row", "range", "partition")
_WEIGHTS = (6, 6, 6, 6, 2, 2, 3, 1, 1)
_int = serialiser(Native("int"))
_encode = position_encoder(SCHEMA.clustering)

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Write:
    """One statement at a time (microseconds); `expires` is the second at which its values do, if any."""

    kind: str
    at: int
    id: int
    n: int
    until: int
    value: int
    expires: int | None

    @property
    def change(self) -> dict[str, Any]:
        """The change that a reader of the database's files would find."""
        key = _int(self.id)
        made: dict[str, Any] = {"kind": "row", "id": self.id, "key": key, "token": token(key)}
        gone = {"tombstone": {"write_time": self.at, "deletion_time": self.at // SECOND}}
        if self.kind == "partition":
            return made | gone | {"kind": "partition_tombstone", "position": PARTITION_POSITION}
        if self.kind == "range":
            ends = {"position": _encode([_int(self.n)], BEFORE), "end": _encode([_int(self.until)], AFTER)}
            return made | gone | {"kind": "range_tombstone"} | ends
        if self.kind == "static":
            return made | {"kind": "static", "position": STATIC_POSITION, "s": self.cell(f"s{self.value}")}
        made |= {"n": self.n, "position": _encode([_int(self.n)], AT)}
        if self.kind == "row":
            return made | gone
        if self.kind == "cell":
            return made | {"v": self._deleted()}
        if self.kind == "insert":
            made |= {"marker": {"write_time": self.at, "ttl": self.ttl, "expiry": self.expires}}
            made |= {"w": self.cell(self.value)}
        return made | {"v": self.cell(f"v{self.value}")}

    @property
    def ttl(self) -> int | None:
        """The seconds for which its values live, if they expire."""
        return None if self.expires is None else self.expires - self.at // SECOND

    def cql(self, table: str, more: dict[str, str]) -> str:
        """The statement, which sets more columns to literals if it sets any of a row."""
        row, using = f"id = {self.id} AND n = {self.n}", f"USING TIMESTAMP {self.at}"
        living = using if self.ttl is None else f"{using} AND TTL {self.ttl}"
        match self.kind:
            case "insert":
                names = ", ".join(["id", "n", "v", "w", *more])
                values = ", ".join([str(self.id), str(self.n), f"'v{self.value}'", str(self.value), *more.values()])
                return f"INSERT INTO {table} ({names}) VALUES ({values}) {living}"
            case "update":
                cells = ", ".join([f"v = 'v{self.value}'", *(f"{name} = {value}" for name, value in more.items())])
                return f"UPDATE {table} {living} SET {cells} WHERE {row}"
            case "static":
                return f"UPDATE {table} {living} SET s = 's{self.value}' WHERE id = {self.id}"
            case "cell":
                return f"DELETE v FROM {table} {using} WHERE {row}"
            case "row":
                return f"DELETE FROM {table} {using} WHERE {row}"
            case "range":
                return f"DELETE FROM {table} {using} WHERE id = {self.id} AND n >= {self.n} AND n <= {self.until}"
        return f"DELETE FROM {table} {using} WHERE id = {self.id}"

    def cell(self, value: Any) -> dict[str, Any]:
        """A live cell that it writes."""
        times = {"write_time": self.at, "ttl": self.ttl, "deletion_time": self.expires}
        return {"value": value, "tombstone": False} | times

    def _deleted(self) -> dict[str, Any]:
        return {"value": None, "write_time": self.at, "deletion_time": self.at // SECOND, "tombstone": True}


def random_write(chooser: random.Random, at: int) -> Write:
    """Make a write. One in six expires within some seconds."""
    n = chooser.randrange(ROWS)
    expires = at // SECOND + chooser.randint(1, 20) if chooser.random() < 1 / 6 else None
    kind = chooser.choices(_KINDS, _WEIGHTS)[0]
    return Write(kind, at, chooser.randrange(PARTITIONS), n, n + chooser.randrange(4), chooser.randrange(1000), expires)


def rows_after(writes: list[Write], second: int) -> list[Row]:
    """Return the rows that SELECT * would return at a second, in some order."""
    rows: dict[tuple[int, int], dict[str, tuple[Any, int | None]]] = {}
    statics: dict[int, tuple[Any, int | None]] = {}
    for write in sorted(writes, key=lambda w: w.at):
        place = write.id, write.n
        if write.kind == "partition":
            statics.pop(write.id, None)
            rows = {at: row for at, row in rows.items() if at[0] != write.id}
        elif write.kind == "range":
            rows = {at: r for at, r in rows.items() if at[0] != write.id or not write.n <= at[1] <= write.until}
        elif write.kind == "row":
            rows.pop(place, None)
        elif write.kind == "static":
            statics[write.id] = f"s{write.value}", write.expires
        elif write.kind == "cell":
            rows.get(place, {}).pop("v", None)
        else:
            row = rows.setdefault(place, {})
            row["v"] = f"v{write.value}", write.expires
            if write.kind == "insert":
                row |= {"w": (write.value, write.expires), "marker": (True, write.expires)}
    return _living(rows, statics, second)


def _living(
    rows: dict[tuple[int, int], dict[str, tuple[Any, int | None]]],
    statics: dict[int, tuple[Any, int | None]],
    second: int,
) -> list[Row]:
    def live(found: dict[Any, tuple[Any, int | None]]) -> dict[Any, Any]:
        return {name: value for name, (value, ends) in found.items() if ends is None or ends > second}

    static, result = live(statics), []
    for (id_, n), row in rows.items():
        if values := live(row):
            result.append((id_, n, static.get(id_), values.get("v"), values.get("w")))
    alone = static.keys() - {row[0] for row in result}
    return result + [(id_, None, static[id_], None, None) for id_ in alone]
