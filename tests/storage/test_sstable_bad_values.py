"""Values and rows that are invalid, with correct checksums: only their partitions are left out."""

import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.storage.scylla_writer import INT, TEXT, VARINT, Cell, Cells, Minimums, Row, write, write_partitions
from tests.support.rewriting import copy, write_plain
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import CqlType, parse_marshal
from writetime.storage import batch
from writetime.storage.file_errors import CorruptFile
from writetime.storage.kernel.primitives import token
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import ScanReport, SSTable

# Python makes no text of so many digits.
BAD = b"\x01" + bytes(2000)
Table = Callable[..., tuple[Location, TableSchema]]
VARINTS = f"ListType({VARINT})"
KEYS = sorted((struct.pack(">i", k) for k in range(40)), key=token)
# In one of the first windows, in the middle and in the last one.
PLACES = (1, 20, 39)
_PATHS = [bytes([i]) * 6 + b"\x11\xee" + bytes(8) for i in range(3)]


def schema_of(columns: list[tuple[str, str]], key: str = INT) -> TableSchema:
    def typed(name: str) -> CqlType:
        return parse_marshal(name)

    regular = tuple(Column(name, typed(class_name)) for name, class_name in columns)
    return TableSchema("ks", "t", (Column("k", typed(key)),), (Column("c", typed(INT)),), (), regular)


def simple(value: bytes) -> Cell:
    return Cell(5, value)


def listed(value: bytes) -> Cells:
    """The value is the second of three elements."""
    return Cells(tuple(Cell(5, v, path=path) for v, path in zip((b"\x07", value, b"\x08"), _PATHS, strict=True)))


def rows(make: Any, bad: bool) -> list[Row]:
    """Two rows, of which the second one may be bad."""
    return [(0, {"v": make(b"\x01"), "w": simple(b"x" * 100)}), (1, {"v": make(BAD if bad else b"\x02")})]


def keys_and_rows(found: Iterable[Any]) -> list[tuple[bytes, int]]:
    return [(change["key"], change["c"]) for each in found for change in each.to_pylist()]


@pytest.fixture(params=[(VARINT, simple), (VARINTS, listed)], ids=["cell", "element"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A function that writes a table with a bad value in some partitions."""
    class_name, make = request.param
    columns = [("v", class_name), ("w", TEXT)]

    def write(*bad: int) -> tuple[Location, TableSchema]:
        partitions = {key: rows(make, i in bad) for i, key in enumerate(KEYS)}
        return write_partitions(tmp_path / "t", columns, partitions, chunk_length=256), schema_of(columns)

    return write


@pytest.mark.parametrize("window", [1, 1 << 20])
@pytest.mark.parametrize("bad", [(place,) for place in PLACES] + [(3, 4, 30)])
def test_only_partitions_of_bad_values_are_left_out(table: Table, bad: tuple[int, ...], window: int) -> None:
    """All others once, and the changes of the former before the bad value."""
    location, schema = table(*bad)
    report = ScanReport()
    sstable = SSTable(location, schema)
    found = keys_and_rows(sstable.scan(on_corrupt="skip-partition", report=report, window=window))
    assert found == [(key, c) for i, key in enumerate(KEYS) for c in (0, 1) if (i, c) not in [(b, 1) for b in bad]]
    assert len(report.skipped) == len(bad)
    assert all(f"ks.t, partition 0x{KEYS[i].hex()}" in text for i, text in zip(bad, report.skipped, strict=True))
    assert 0 < report.skipped_bytes < 3000 * len(bad)


def read_into(found: list[tuple[bytes, int]], sstable: SSTable) -> None:
    for each in sstable.scan():
        found += keys_and_rows([each])


@pytest.mark.parametrize("place", PLACES)
def test_the_changes_before_a_bad_value_stay(table: Table, place: int) -> None:
    location, schema = table(place)
    wanted = [(key, c) for key in KEYS for c in (0, 1)][: 2 * place + 1]
    found: list[tuple[bytes, int]] = []
    where = re.escape(f"ks.t, partition 0x{KEYS[place].hex()}: ")
    with pytest.raises(CorruptFile, match=rf"Data\.db, offset \d+: {where}.* is not a valid varint"):
        read_into(found, SSTable(location, schema))
    assert found == wanted
    report = ScanReport()
    assert keys_and_rows(SSTable(location, schema).scan(on_corrupt="skip-file", report=report)) == wanted
    assert len(report.skipped) == 1


def test_pieces_leave_out_the_same_values_as_the_whole(table: Table) -> None:
    location, schema = table(1, 20, 39)
    sstable = SSTable(location, schema)
    whole = keys_and_rows(sstable.scan(on_corrupt="skip-partition"))
    report = ScanReport()
    splits = sstable.splits(2000)
    assert len(splits) > 3
    found = [keys_and_rows(sstable.scan(split=s, on_corrupt="skip-partition", report=report)) for s in splits]
    assert [change for part in found for change in part] == whole
    assert len(report.skipped) == 3


@pytest.mark.parametrize("window", [1, 1 << 20])
def test_bad_keys(tmp_path: Path, window: int) -> None:
    keys = sorted([bytes([k]) for k in range(1, 30)] + [BAD], key=token)
    location = write_partitions(
        tmp_path / "t", [("v", INT)], {k: [(c, {"v": simple(bytes(4))}) for c in (0, 1)] for k in keys}, key=VARINT
    )
    report = ScanReport()
    scan = SSTable(location, schema_of([("v", INT)], VARINT)).scan(
        on_corrupt="skip-partition", report=report, window=window
    )
    assert keys_and_rows(scan) == [(key, c) for key in keys if key != BAD for c in (0, 1)]
    assert [f"partition 0x{BAD[:64].hex()}...: " in text for text in report.skipped] == [True]


def test_a_fault_without_a_place_ends_the_file(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read again."""
    location, schema = table()
    sound = batch.BatchMaker._array
    calls = 0

    def failing(self: batch.BatchMaker, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 40:
            raise RuntimeError("nobody expects this")
        return sound(self, *arguments)

    monkeypatch.setattr(batch.BatchMaker, "_array", failing)
    report = ScanReport()
    found = keys_and_rows(SSTable(location, schema).scan(on_corrupt="skip-partition", report=report, window=1))
    assert found == [(key, c) for key in KEYS for c in (0, 1)][: len(found)]
    assert 0 < len(found) < 80
    assert len(report.skipped) == 1


def test_a_long_key_of_many_small_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change has its key, so that a window of them takes gigabytes."""
    monkeypatch.setattr(batch, "KEY_BYTES", 1 << 20)
    keys = sorted([b"a" * 60_000, b"b", b"c" * 30_000, b"d"], key=token)
    columns = [("l", VARINTS), ("v", TEXT)]
    partitions = {
        k: [(c, {"v": simple(b"x" * c), "l": listed(b"\x09")} if c % 3 else {}) for c in range(200)] for k in keys
    }
    location = write_partitions(tmp_path / "t", columns, partitions, key=TEXT)
    found = list(SSTable(location, schema_of(columns, TEXT)).scan())
    assert len(found) > 10
    assert all(each["key"].get_total_buffer_size() < 1.1 * (1 << 20) for each in found)
    assert keys_and_rows(found) == [(k, c) for k in keys for c in range(200) if c % 3]
    for each in found:
        each.validate(full=True)
        for change in each.to_pylist():
            assert (change["k"].encode(), change["v"]["value"]) == (change["key"], "x" * change["c"])
            assert [e["value"] for e in change["l"]["elements"]] == ["7", "9", "8"]


def test_a_static_row_that_is_longer_than_its_size(tmp_path: Path) -> None:
    """Its end is not taken for that of the window, which would grow to the end of the file."""
    static: Row = (None, {"s": simple(b"s" * 50)})
    partitions = {key: [static, (0, {"v": simple(b"x" * 4000)})] for key in KEYS}
    location = write_partitions(tmp_path / "t", [("v", TEXT)], partitions, static=[("s", TEXT)])
    data = Path(location.path("Data.db")).read_bytes()
    # The size comes after the partition's head of 18 bytes and the row's flags.
    at = int(SSTable(location).index.positions[1]) + 20
    write_plain(location, data[:at] + bytes([data[at] - 10]) + data[at + 1 :])
    report = ScanReport()
    schema = replace(schema_of([("v", TEXT)]), static=(Column("s", parse_marshal(TEXT)),))
    scan = SSTable(location, schema).scan(on_corrupt="skip-partition", report=report)
    assert len(keys_and_rows(scan)) == 2 * (len(KEYS) - 1)
    assert "a row whose cells do not end at its size" in report.skipped[0]
    assert report.skipped_bytes < 5000


def test_numbers_of_columns_that_are_out_of_order(tmp_path: Path) -> None:
    """Of 70 columns, a row has those with the numbers 6, 16, 26, 45 and 66. In compacted files of Cassandra 6.0-alpha2,
    the last ones may be missing, and the cells follow.
    """
    wide = Path(__file__).parents[1] / "data" / "cassandra" / "nb" / "wide"
    here = copy(next(find_sstables(str(wide))), tmp_path / "here")
    sound = here.read("Data.db")
    numbers = bytes([65, 6, 16, 26, 45, 66])
    assert sound.count(numbers) == 1
    write_plain(here, sound.replace(numbers, bytes([65, 6, 26, 16, 45, 66])))
    with pytest.raises(CorruptFile, match="a set of columns that the header does not have"):
        list(SSTable(here).scan())


def test_a_cell_that_is_deleted_and_expires(tmp_path: Path) -> None:
    """Compactions of Cassandra 6.0 write tombstones so, with a TTL of 0. With another TTL, the cell expires."""

    def read(name: str, cell: Cell, *changed: tuple[bytes, bytes]) -> list[Any]:
        here = write(tmp_path / name, [("v", TEXT)], [(0, {"v": cell})], minimums=Minimums(5, 7, 0))
        data = here.read("Data.db")
        for before, after in changed:
            assert data.count(before) == 1
            data = data.replace(before, after)
        write_plain(here, data)
        return [row["v"] for found in SSTable(here).scan(["v"]) for row in found.to_pylist()]

    # The flags, and the write time, the deletion time and the TTL, as the distances to the minimums.
    expiring = bytes([6, 4, 60, 33])
    cell = Cell(9, b"", ttl=33, deletion_time=67)
    tombstone = read("tombstone", Cell(9, None, deletion_time=67))
    assert tombstone != read("cell", cell)
    assert read("both", cell, (expiring, bytes([7, 4, 60, 0]))) == tombstone
    assert read("expiring", cell, (expiring, bytes([7, 4, 60, 33]))) == read("live", cell)
