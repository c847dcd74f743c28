"""Writes CDC logs like ScyllaDB: the log rows of each mutation in Cassandra's commit log.

The rules are those of ScyllaDB's `cdc/split.cc` and `cdc/log.cc`: one group per time, the tombstone of a collection
counted as one microsecond later than it is, and rows ordered by kind, then by clustering key, then by TTL. Cassandra's
own `CommitLogReader` prints the mutations as serialised bytes, so no code of Writetime is involved.
"""

import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, Udt, is_complex

EPOCH = 0x01B21DD213814000
Line = dict[str, Any]
Row = dict[str, bytes | None]

UPDATE, INSERT, ROW_DELETE, PARTITION_DELETE, START, START_EXCLUSIVE, END, END_EXCLUSIVE = range(1, 9)


@dataclass
class Mutation:
    """The effect of one statement on one partition: the lines that the oracle prints."""

    table: str
    key: bytes
    deletion: list[int] | None
    lines: list[Line] = field(default_factory=list)


@dataclass
class Group:
    """The log rows of one mutation and time."""

    key: bytes
    time: int
    rows: list[Row]


def mutations(lines: Iterable[Line], names: dict[str, str]) -> list[Mutation]:
    """Return the mutations of tables, whose ids `names` has."""
    found: list[Mutation] = []
    table: str | None = None
    for line in lines:
        assert "error" not in line, line
        if "update" in line:
            table = names.get(line["update"])
        elif "key" in line and table is not None:
            found.append(Mutation(table, bytes.fromhex(line["key"]), line["deletion"]))
        elif "file" not in line and table is not None:
            found[-1].lines.append(line)
    return found


@dataclass
class _Part:
    """The changes that a mutation makes to one row with one write time and one TTL."""

    marker: bool = False
    cells: Row = field(default_factory=dict)
    elements: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    gone: dict[str, list[bytes]] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)


Clustering = tuple[bytes | None, ...]


@dataclass
class _Time:
    """The changes that a mutation makes with one write time."""

    static: dict[int, _Part] = field(default_factory=dict)
    rows: dict[Clustering, dict[int, _Part]] = field(default_factory=dict)
    deleted: list[Clustering] = field(default_factory=list)
    ranges: list[tuple[int, Clustering, int, Clustering]] = field(default_factory=list)
    partition: bool = False


class Splitter:
    """Makes the log rows of one table's mutations."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._types = {c.name: c.type for c in schema.static + schema.regular}

    def groups(self, mutation: Mutation) -> list[Group]:
        """Return the groups of a mutation, without their ends and numbers."""
        times = self._times(mutation)
        # A statement that changes nothing is not logged.
        if not times:
            return []
        split = self._is_split(times)
        made = []
        for time, found in sorted(times.items()):
            rows = [self._keyed(mutation.key, row) for row in self._rows(found, split=split)]
            assert rows
            made.append(Group(mutation.key, time, rows))
        return made

    def _times(self, mutation: Mutation) -> dict[int, _Time]:
        times: dict[int, _Time] = {}

        def at(time: int) -> _Time:
            return times.setdefault(time, _Time())

        if mutation.deletion:
            at(mutation.deletion[0]).partition = True
        opened: tuple[int, int, Clustering] | None = None
        for line in mutation.lines:
            if "bound" in line:
                values = tuple(None if v is None else bytes.fromhex(v) for v in line["values"])
                after = line["bound"].endswith("60")
                if line["close"]:
                    assert opened is not None
                    time, operation, start = opened
                    end = END if after else END_EXCLUSIVE
                    at(time).ranges.append((operation, start, end, values))
                opened = None
                if line["open"]:
                    opened = line["open"][0], START_EXCLUSIVE if after else START, values
            else:
                self._row(line, at)
        return times

    def _row(self, line: Line, at: Any) -> None:
        static = line["position"] == "18"
        clustering = tuple(None if v is None else bytes.fromhex(v) for v in line["clustering"])

        def part(time: int, ttl: int | None) -> _Part:
            rows = at(time).static if static else at(time).rows.setdefault(clustering, {})
            return rows.setdefault(ttl or 0, _Part())

        if line["deletion"]:
            at(line["deletion"][0]).deleted.append(clustering)
        if line["marker"]:
            time, ttl, _ = line["marker"]
            part(time, ttl).marker = True
        for name, (time, _) in line["columns"]:
            part(time + 1, 0).whole.add(name)
        for name, path, value, (time, ttl, _), tombstone in line["cells"]:
            where = part(time, None if tombstone else ttl)
            if path is None:
                where.cells[name] = None if tombstone else bytes.fromhex(value)
            elif tombstone:
                where.gone.setdefault(name, []).append(bytes.fromhex(path))
            else:
                where.elements.setdefault(name, []).append((bytes.fromhex(path), bytes.fromhex(value)))

    def _is_split(self, times: dict[int, _Time]) -> bool:
        if len(times) > 1:
            return True
        (found,) = times.values()
        parts = [p for rows in [found.static, *found.rows.values()] for p in rows]
        kinds = [found.static, found.rows, found.deleted, found.ranges, found.partition]
        return len(set(parts)) > 1 or sum(map(bool, kinds)) > 1

    def _rows(self, found: _Time, *, split: bool) -> Iterator[Row]:
        for ttl, part in sorted(found.static.items()):
            yield {"operation": _byte(UPDATE), "ttl": _ttl(ttl), **self._written(part)}
        updates: list[Row] = []
        # The oracle prints rows in the order of their clustering.
        for clustering, parts in found.rows.items():
            for ttl, part in sorted(parts.items()):
                rest = part
                if part.marker:
                    inserted = _Part(cells=part.cells) if split else part
                    rest = _Part(elements=part.elements, gone=part.gone, whole=part.whole) if split else _Part()
                    yield self._clustered(INSERT, clustering, ttl, inserted)
                if rest.cells or rest.elements or rest.gone or rest.whole:
                    updates.append(self._clustered(UPDATE, clustering, ttl, rest))
        yield from updates
        for clustering in found.deleted:
            yield self._clustered(ROW_DELETE, clustering, 0, _Part())
        for start, first, end, last in found.ranges:
            yield self._clustered(start, first, 0, _Part())
            yield self._clustered(end, last, 0, _Part())
        if found.partition:
            yield {"operation": _byte(PARTITION_DELETE), "ttl": None}

    def _clustered(self, operation: int, clustering: Clustering, ttl: int, part: _Part) -> Row:
        names = [c.name for c in self._schema.clustering]
        keys = dict(zip(names, clustering, strict=False))
        return {"operation": _byte(operation), "ttl": _ttl(ttl), **keys, **self._written(part)}

    def _written(self, part: _Part) -> Row:
        row: Row = {}
        for name, value in part.cells.items():
            row[name] = value
            if value is None:
                row["cdc$deleted_" + name] = b"\x01"
        for name in part.whole:
            row["cdc$deleted_" + name] = b"\x01"
        for name, paths in part.gone.items():
            row["cdc$deleted_elements_" + name] = _sequence(paths)
        for name in {*part.elements, *part.gone, *part.whole}:
            cql_type = self._types[name]
            assert is_complex(cql_type)
            if isinstance(cql_type, Udt):
                written = {int.from_bytes(path, "big"): value for path, value in part.elements.get(name, [])}
                row[name] = b"".join(_value(written.get(i)) for i in range(len(cql_type.fields)))
            elif name in part.elements:
                pairs = part.elements[name]
                assert isinstance(cql_type, Collection)
                parts = [path for path, _ in pairs] if cql_type.kind == "set" else [x for pair in pairs for x in pair]
                row[name] = struct.pack(">i", len(pairs)) + b"".join(map(_value, parts))
        return row

    def _keyed(self, key: bytes, row: Row) -> Row:
        names = [c.name for c in self._schema.partition_key]
        if len(names) == 1:
            return {names[0]: key, **row}
        parts, p = [], 0
        for _ in names:
            length = int.from_bytes(key[p : p + 2], "big")
            parts.append(key[p + 2 : p + 2 + length])
            p += 3 + length
        return {**dict(zip(names, parts, strict=True)), **row}


def numbered(group: Group, r: random.Random) -> Iterator[Row]:
    """Return the rows of a group as the log has them, but for their stream."""
    ticks = group.time * 10 + EPOCH
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | 0x1000 | ticks >> 48
    # Older releases did not set the variant.
    low = r.getrandbits(64) if r.random() < 0.3 else 1 << 63 | r.getrandbits(62)
    time = struct.pack(">QQ", high, low)
    for i, row in enumerate(group.rows):
        named = {"cdc$" + n if n in ("operation", "ttl") else n: v for n, v in row.items()}
        ends = b"\x01" if i == len(group.rows) - 1 else None
        yield {"cdc$time": time, "cdc$batch_seq_no": struct.pack(">i", i), "cdc$end_of_batch": ends, **named}


def _byte(operation: int) -> bytes:
    return struct.pack(">b", operation)


def _ttl(ttl: int) -> bytes | None:
    return struct.pack(">q", ttl) if ttl else None


def _value(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else struct.pack(">i", len(data)) + data


def _sequence(parts: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(parts)) + b"".join(map(_value, parts))
