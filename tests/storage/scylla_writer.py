"""Writes small SSTables of version `me` like ScyllaDB, with parts that no recorded SSTable has.

Source: sstables/mx/writer.cc of ScyllaDB 2026.1 (`make_sstable_schema`, `write_missing_columns`, `write_cell`,
`write_collection`). Tables have the key `k int`, or of another type, and the clustering column `c int`.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from writetime.storage.kernel.primitives import token
from writetime.storage.locations import Location, find_sstables

INT, TEXT, FLOAT, BLOB, VARINT = "Int32Type", "UTF8Type", "FloatType", "BytesType", "IntegerType"
TEXTS, INTS = "SetType(UTF8Type)", "ListType(Int32Type)"
_FIXED = {INT, FLOAT, "LongType"}
_TIMESTAMP_EPOCH, _DELETION_TIME_EPOCH = 1_442_880_000_000_000, 1_442_880_000
_MAX = (1 << 63) - 1

# Name and type, by the name of its class.
Columns = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Cell:
    """A cell: `value` is None for a tombstone; `deletion_time` is that of a tombstone, or the expiry of the cell."""

    write_time: int
    value: bytes | None
    ttl: int = 0
    deletion_time: int = 0
    path: bytes = b""


@dataclass(frozen=True)
class Cells:
    """A multi-cell column: its cells, and write and deletion time of its tombstone, if it has one."""

    cells: tuple[Cell, ...]
    tombstone: tuple[int, int] | None = None


# The columns of a row, by its clustering (None: the static row).
Row = tuple[int | None, Mapping[str, Cell | Cells]]


@dataclass(frozen=True)
class Minimums:
    """What deltas are added to; what no cell has is the largest number."""

    write_time: int = _TIMESTAMP_EPOCH
    deletion_time: int = _MAX
    ttl: int = _MAX


def vint(value: int) -> bytes:
    """Encode an unsigned vint."""
    value %= 1 << 64
    for extra in range(8):
        if value < 1 << (7 * (extra + 1)):
            first = (0xFF00 >> extra) & 0xFF
            data = value.to_bytes(extra + 1, "big")
            return bytes([data[0] | first]) + data[1:]
    return b"\xff" + value.to_bytes(8, "big")


def is_multi_cell(class_name: str) -> bool:
    return class_name.startswith(("SetType", "ListType", "MapType", "UserType"))


def write(
    folder: Path,
    regular: Columns,
    rows: Sequence[Row],
    static: Columns = (),
    minimums: Minimums | None = None,
    headers: tuple[Columns, Columns] | None = None,
    partitioner: str = "org.apache.cassandra.dht.Murmur3Partitioner",
) -> Location:
    """Write one partition, k = 1.

    Args:
        folder: where to.
        regular: columns, in any order.
        rows: in the order of their clusterings, the static one first.
        static: static columns, in any order.
        minimums: of write times, deletion times and TTLs.
        headers: static and regular columns as the header is to list them; by name otherwise, as ScyllaDB does.
        partitioner: the class that makes the tokens.
    """
    return write_partitions(
        folder,
        regular,
        {struct.pack(">i", 1): rows},
        static=static,
        minimums=minimums,
        headers=headers,
        partitioner=partitioner,
    )


def write_partitions(
    folder: Path,
    regular: Columns,
    partitions: Mapping[bytes, Sequence[Row]],
    *,
    key: str = INT,
    chunk_length: int = 65536,
    static: Columns = (),
    minimums: Minimums | None = None,
    headers: tuple[Columns, Columns] | None = None,
    partitioner: str = "org.apache.cassandra.dht.Murmur3Partitioner",
) -> Location:
    """Write partitions by their serialised keys, of the type `key`, and Index.db; as `write` otherwise."""
    folder.mkdir(parents=True)
    by_name = sorted(static, key=_name), sorted(regular, key=_name)
    minimums = minimums or Minimums()
    encoder = _Encoder(_simple_first(by_name[0]), _simple_first(by_name[1]), minimums)
    data, index = b"", b""
    for of in sorted(partitions, key=token):
        index += struct.pack(">H", len(of)) + of + vint(len(data)) + vint(0)
        data += encoder.partition(of, partitions[of])
    sums = [zlib.crc32(data[i : i + chunk_length]) for i in range(0, len(data), chunk_length)]
    components = {
        "Data.db": data,
        "Index.db": index,
        "Digest.crc32": str(zlib.crc32(data)).encode(),
        "CRC.db": struct.pack(f">i{len(sums)}I", chunk_length, *sums),
        "Statistics.db": _statistics(partitioner.encode(), minimums, key, *(headers or by_name)),
        "Scylla.db": b"",
    }
    components["TOC.txt"] = "".join(f"{name}\n" for name in [*components, "TOC.txt"]).encode()
    for name, content in components.items():
        (folder / f"me-1-big-{name}").write_bytes(content)
    (location,) = find_sstables(str(folder))
    return location


def _name(column: tuple[str, str]) -> bytes:
    return column[0].encode()


def _simple_first(columns: Columns) -> Columns:
    return sorted(columns, key=lambda column: is_multi_cell(column[1]))


def _text(text: str) -> bytes:
    return vint(len(text.encode())) + text.encode()


def _statistics(partitioner: bytes, minimums: Minimums, key: str, static: Columns, regular: Columns) -> bytes:
    def class_name(short: str) -> str:
        return short if "(" in short else "org.apache.cassandra.db.marshal." + short

    header = vint(minimums.write_time - _TIMESTAMP_EPOCH)
    header += vint(minimums.deletion_time - _DELETION_TIME_EPOCH) + vint(minimums.ttl)
    header += _text(class_name(key)) + vint(1) + _text(class_name(INT))
    for columns in (static, regular):
        header += vint(len(columns)) + b"".join(_text(n) + _text(class_name(t)) for n, t in columns)
    components = {
        0: struct.pack(">H", len(partitioner)) + partitioner + struct.pack(">d", 0.01),
        3: header,
    }
    offset = 4 + 8 * len(components)
    contents = struct.pack(">i", len(components))
    for kind, body in components.items():
        contents += struct.pack(">ii", kind, offset)
        offset += len(body)
    return contents + b"".join(components.values())


class _Encoder:
    """`static` and `regular` are in the order of the rows."""

    def __init__(self, static: Columns, regular: Columns, minimums: Minimums) -> None:
        self._static = static
        self._regular = regular
        self._minimums = minimums

    def partition(self, key: bytes, rows: Sequence[Row]) -> bytes:
        out = struct.pack(">H", len(key)) + key + struct.pack(">iq", 0x7FFFFFFF, -(1 << 63))
        if self._static and not (rows and rows[0][0] is None):
            rows = [(None, {}), *rows]
        for clustering, columns in rows:
            out += self._row(clustering, columns)
        return out + b"\x01"

    def _row(self, clustering: int | None, columns: Mapping[str, Cell | Cells]) -> bytes:
        known = self._static if clustering is None else self._regular
        with_deletion = any(isinstance(c, Cells) and c.tombstone for c in columns.values())
        flags = (0x20 if len(columns) == len(known) else 0) | (0x40 if with_deletion else 0)
        if clustering is None:
            head = bytes([flags | 0x80, 0x01])
        else:
            head = bytes([flags]) + vint(0) + struct.pack(">i", clustering)
        body = vint(0) + self._missing(known, columns)
        for name, class_name in known:
            column = columns.get(name)
            if isinstance(column, Cell):
                body += self._cell(column, class_name in _FIXED, b"")
            elif column is not None:
                body += self._cells(column, with_deletion)
        return head + vint(len(body)) + body

    @staticmethod
    def _missing(known: Columns, columns: Mapping[str, Cell | Cells]) -> bytes:
        there = [name in columns for name, _ in known]
        if all(there):
            return b""
        if len(there) < 64:
            return vint(sum(1 << i for i, is_there in enumerate(there) if not is_there))
        listed = sum(there) < len(there) // 2
        numbers = [i for i, is_there in enumerate(there) if is_there == listed]
        return vint(len(there) - sum(there)) + b"".join(map(vint, numbers))

    def _cells(self, column: Cells, with_deletion: bool) -> bytes:
        out = b""
        if with_deletion:
            write_time, deletion_time = column.tombstone or (-(1 << 63), 0x7FFFFFFF)
            out += vint(write_time - self._minimums.write_time)
            out += vint(deletion_time - self._minimums.deletion_time)
        out += vint(len(column.cells))
        return out + b"".join(self._cell(cell, False, vint(len(cell.path)) + cell.path) for cell in column.cells)

    def _cell(self, cell: Cell, fixed: bool, path: bytes) -> bytes:
        flags = 0x04 if not cell.value else 0
        flags |= 0x01 if cell.value is None else 0x02 if cell.ttl else 0
        out = bytes([flags]) + vint(cell.write_time - self._minimums.write_time)
        if flags & 3:
            out += vint(cell.deletion_time - self._minimums.deletion_time)
        if cell.ttl:
            out += vint(cell.ttl - self._minimums.ttl)
        out += path
        if cell.value:
            out += cell.value if fixed else vint(len(cell.value)) + cell.value
        return out
