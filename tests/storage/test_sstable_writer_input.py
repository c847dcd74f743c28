"""Input that the writer of SSTables refuses, and files without the database."""

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import writetime
from writetime.changes.model import change_schema
from writetime.changes.position import AFTER, AT, BEFORE, position_encoder
from writetime.core.errors import WritetimeError
from writetime.schema.cql import parse_schemas
from writetime.storage.kernel.primitives import token
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable
from writetime.storage.sstable_writer import SSTableWriter

CREATE = "CREATE TABLE t.t (k int, c int, v int, PRIMARY KEY (k, c))"
(SCHEMA,) = parse_schemas(CREATE)
_ENCODE = position_encoder(SCHEMA.clustering)


def _int(value: int) -> bytes:
    return struct.pack(">i", value)


def _partition(k: int) -> dict[str, Any]:
    return {"k": k, "key": _int(k), "token": token(_int(k))}


def _row(k: int, c: int, **cell: Any) -> dict[str, Any]:
    value = {"value": c, "write_time": 7, "tombstone": False, **cell}
    return {"kind": "row", **_partition(k), "c": c, "position": _ENCODE([_int(c)], AT), "v": value}


def _range(k: int, first: int, last: int) -> dict[str, Any]:
    tombstone = {"write_time": 5, "deletion_time": 1000}
    positions = {"position": _ENCODE([_int(first)], BEFORE), "end": _ENCODE([_int(last)], AFTER)}
    return {"kind": "range_tombstone", **_partition(k), **positions, "tombstone": tombstone}


def _write(folder: Path, *batches: list[dict[str, Any]], version: str = "nb") -> SSTable:
    with SSTableWriter(str(folder), SCHEMA, version=version) as writer:
        for rows in batches:
            writer.write(pa.RecordBatch.from_pylist(rows, schema=change_schema(SCHEMA)))
    (location,) = find_sstables(str(folder))
    return SSTable(location, SCHEMA)


def _changes(sstable: SSTable) -> list[tuple[str, int, int | None]]:
    rows = pa.Table.from_batches(sstable.scan(["kind", "k", "c"])).to_pylist()
    return [(row["kind"], row["k"], row["c"]) for row in rows]


ONE, TWO = sorted((1, 2), key=lambda k: token(_int(k)))


@pytest.mark.parametrize("version", ["nb", "oa", "me"])
def test_partitions_and_ranges_continue_in_the_next_batch(tmp_path: Path, version: str) -> None:
    batches = [[_range(ONE, 1, 3)], [_row(ONE, 2)], [_row(ONE, 5), _row(TWO, 1)], [_row(TWO, 2)]]
    found = _changes(_write(tmp_path / "out", *batches, version=version))
    wanted = [("row", ONE, 2), ("range_tombstone", ONE, None), ("row", ONE, 5), ("row", TWO, 1), ("row", TWO, 2)]
    assert found == wanted


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ([[_row(TWO, 1), _row(ONE, 1)]], "change 1: partitions must have tokens and keys that grow"),
        ([[_row(ONE, 1)], [_row(ONE, 1)]], "change 1: changes of a partition must have positions that grow"),
        ([[_row(ONE, 2), _row(ONE, 1)]], "change 1: changes of a partition must have positions that grow"),
        ([[_range(ONE, 1, 5)], [_range(ONE, 3, 9)]], "change 1: a range tombstone begins within another one"),
        ([[_row(ONE, 1, ttl=5, deletion_time=1 << 31)]], "a cell expires or was deleted at 2147483648"),
        ([], "an SSTable without changes cannot be written"),
    ],
)
def test_input_that_is_refused(tmp_path: Path, batches: list[list[dict[str, Any]]], text: str) -> None:
    with pytest.raises(WritetimeError, match=text):
        _write(tmp_path / "out", *batches)
    # Without TOC.txt, the files that were written before the error are not read as an SSTable.
    assert not (tmp_path / "out" / "nb-1-big-TOC.txt").exists()


def test_later_expiries_need_another_version(tmp_path: Path) -> None:
    rows = [_row(ONE, 1, ttl=5, deletion_time=1 << 31)]
    for version in ("oa", "me"):
        sstable = _write(tmp_path / version, rows, version=version)
        assert [batch["v"][0]["deletion_time"].as_py() for batch in sstable.scan(["v"])] == [1 << 31]
    with pytest.raises(WritetimeError, match="SSTables of version da cannot be written; those of nb, oa, me can"):
        _write(tmp_path / "other", rows, version="da")


def test_deletions_after_2038(tmp_path: Path) -> None:
    """ScyllaDB has 31 bits for that of a partition, unlike an expiry."""
    rows = [{**_row(ONE, 1), "v": None, "tombstone": {"write_time": 5, "deletion_time": 1 << 31}}]
    with pytest.raises(WritetimeError, match=r"deleted at 2147483648 .*; version me holds 0 to 2147483646"):
        _write(tmp_path / "out", rows, version="me")


def test_a_table_of_changes_is_merged_first(tmp_path: Path) -> None:
    rows = [_row(TWO, 2), _row(ONE, 1, value=3), _row(ONE, 1, value=4, write_time=8), _range(ONE, 7, 9)]
    changes = pa.Table.from_pylist(rows, schema=change_schema(SCHEMA))
    path = writetime.write_sstable(changes, str(tmp_path / "out"), CREATE, compressor=None)
    found = writetime.read_sstable(path, CREATE).read_all()
    assert [None if v is None else v["value"] for v in found["v"].to_pylist()] == [4, None, 2]
    with pytest.raises(WritetimeError, match="out has SSTables already: name a folder without any"):
        writetime.write_sstable(changes, str(tmp_path / "out"), CREATE)


def test_a_writer_that_refused_a_batch_does_not_go_on(tmp_path: Path) -> None:
    def write(writer: SSTableWriter, *rows: dict[str, Any]) -> None:
        writer.write(pa.RecordBatch.from_pylist(list(rows), schema=change_schema(SCHEMA)))

    def go_on() -> None:
        with SSTableWriter(str(tmp_path / "out"), SCHEMA) as writer:
            write(writer, _row(ONE, 1))
            with pytest.raises(WritetimeError, match="positions that grow"):
                write(writer, _row(ONE, 2), _row(ONE, 1))
            with pytest.raises(WritetimeError, match="an earlier batch was refused"):
                write(writer, _row(TWO, 1))

    with pytest.raises(WritetimeError, match="an earlier batch was refused: write a new SSTable"):
        go_on()
    assert not (tmp_path / "out" / "nb-1-big-TOC.txt").exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"key": None}, "a partition key must have 1 to 65535 bytes"),
        ({"key": b"k" * 65536}, "a partition key must have 1 to 65535 bytes"),
        ({"kind": None}, "a change of another kind than row, static, range_tombstone, partition_tombstone"),
        ({"kind": "cell"}, "a change of another kind than"),
        ({"position": None}, "a row without a position"),
        ({"position": b"@" * 300_000}, "a clustering value must have at most 65535 bytes"),
        ({**_range(ONE, 1, 3), "end": None}, "a range that does not end after its start"),
        ({**_range(ONE, 1, 3), "position": None}, "a row without a position"),
        (_range(ONE, 3, 1), "a range that does not end after its start"),
    ],
)
def test_changes_without_a_place_are_refused(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    with pytest.raises(WritetimeError, match=f"change 0: .*{text}"):
        _write(tmp_path / "out", [{**_row(ONE, 1), **change}])


def test_a_tombstone_of_a_partition_that_comes_late_is_refused(tmp_path: Path) -> None:
    late = {"kind": "partition_tombstone", **_partition(ONE), "tombstone": {"write_time": 9, "deletion_time": 9}}
    for batches in ([[_row(ONE, 1), late]], [[_row(ONE, 1)], [late]]):
        with pytest.raises(WritetimeError, match="change 1: changes of a partition must have positions that grow"):
            _write(tmp_path / "out", *batches)


def test_long_clusterings_are_refused_and_the_longest_written(tmp_path: Path) -> None:
    create = "CREATE TABLE t.t (k int, c blob, PRIMARY KEY (k, c))"
    (schema,) = parse_schemas(create)
    encode = position_encoder(schema.clustering)

    def written(length: int, kind: str) -> pa.Table:
        rows = []
        for k in (ONE, TWO):
            # A zero takes two bytes in a position.
            values = [bytes([1]) + bytes(length - 1), bytes([2]) + bytes(length - 1)]
            end = AT if kind == "row" else BEFORE
            made = {
                "kind": kind,
                **_partition(k),
                "position": encode(values[:1], end),
                "end": encode(values[1:], AFTER),
            }
            times = {"write_time": 5, "deletion_time": 1000}
            rows.append(made | ({"c": values[0]} if kind == "row" else {}) | {"tombstone": times})
        table = pa.Table.from_pylist(rows, schema=change_schema(schema))
        # In batches of one change, the clusterings of the first are kept for the second.
        batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1))
        path = writetime.write_sstable(batches, str(tmp_path / f"{kind}{length}"), create)
        return writetime.read_sstable(path, create).read_all()

    for kind in ("row", "range_tombstone"):
        assert written(65535, kind)["kind"].to_pylist() == [kind, kind]
        with pytest.raises(WritetimeError, match="65535 bytes"):
            written(65536, kind)


def test_changes_with_other_fields_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([_row(ONE, 1)], schema=change_schema(SCHEMA))
    large = table.set_column(2, "key", table["key"].cast(pa.large_binary()))
    for changed, text in (
        (table.drop_columns(["v"]), "must have the field v of type struct"),
        (large, "must have the field key of type binary, not large_binary"),
    ):
        with pytest.raises(WritetimeError, match=text), SSTableWriter(str(tmp_path / "out"), SCHEMA) as writer:
            writer.write(changed.to_batches()[0])
    reader = pa.RecordBatchReader.from_batches(large.schema, large.to_batches())
    with pytest.raises(WritetimeError, match="column key: large_binary cannot become binary"):
        writetime.write_sstable(reader, str(tmp_path / "other"), CREATE)


@pytest.mark.parametrize(
    "options", [{"compressor": "BestCompressor"}, {"chunk_length": 0}, {"block_size": 0}, {"block_size": 1 << 31}]
)
def test_bad_options_leave_no_files(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(WritetimeError, match=next(iter(options))):
        SSTableWriter(str(tmp_path), SCHEMA, **options)
    assert not list(tmp_path.iterdir())
