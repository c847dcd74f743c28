"""The writer of the data source `sstable`, without Spark: options, attempts of tasks, and faults."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.made import SCHEMA, batch, cell, write
from writetime.changes.model import change_schema
from writetime.core.errors import WritetimeError
from writetime.merge.folding import merge
from writetime.sources.sstable import SSTableFolderWriter, SSTableSource
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import SSTable

CQL = SCHEMA.create_statement()
FIELDS = from_arrow_schema(change_schema(SCHEMA))


def _writer(folder: Path, **options: str) -> SSTableFolderWriter:
    return SSTableSource({"schema": CQL, "path": str(folder), **options}).writer(FIELDS, overwrite=False)


def _rows(first: int, count: int = 5) -> list[dict[str, Any]]:
    return [write(id_, n, 7, v=f"{id_} {n}") for id_ in range(first, first + count) for n in (2, 1)]


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _state(folder: Path) -> pa.Table:
    return merge([b for found in find_sstables(str(folder)) for b in SSTable(found, SCHEMA).scan()], SCHEMA)


def test_only_attempts_that_count_are_added(tmp_path: Path) -> None:
    """Spark runs two attempts of a slow task, and commits one of them."""
    writer = _writer(tmp_path)
    first, again, second = (writer.write(iter([batch(_rows(n))])) for n in (0, 0, 5))
    empty = writer.write(iter([]))
    assert list(find_sstables(str(tmp_path))) == []
    writer.commit([again, empty, second])
    assert first != again
    assert [found.id for found in find_sstables(str(tmp_path))] == ["1", "2"]
    assert all(name.startswith(("nb-1-big-", "nb-2-big-")) for name in _names(tmp_path))
    assert _state(tmp_path).equals(merge([batch(_rows(0, 10))], SCHEMA))
    # Another job adds to them, and the identifier may be a UUID.
    for path in tmp_path.glob("nb-2-*"):
        path.rename(tmp_path / path.name.replace("-2-", "-3gx1_0abc_1defghijklmnopqrst-"))
    later = _writer(tmp_path, compressor="none", version="oa")
    later.commit([later.write(iter([batch(_rows(20))]))])
    assert [(found.version, found.id) for found in find_sstables(str(tmp_path))][:2] == [("nb", "1"), ("oa", "2")]
    assert (tmp_path / "oa-2-big-CRC.db").exists()
    assert _state(tmp_path).equals(merge([batch(_rows(0, 10)), batch(_rows(20))], SCHEMA))


def test_an_attempt_that_fails_removes_its_files(tmp_path: Path) -> None:
    writer = _writer(tmp_path, block_size="256")
    late = write(1, 1, 7) | {"v": cell("a", 7) | {"ttl": 5, "deletion_time": 1 << 31}}

    def lost() -> Iterator[pa.RecordBatch]:
        yield batch(_rows(0))
        raise ConnectionError("lost")

    with pytest.raises(WritetimeError, match="expires or was deleted at 2147483648"):
        writer.write(iter([batch([*_rows(0), late])]))
    with pytest.raises(ConnectionError):
        writer.write(lost())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    done = writer.write(iter([batch(_rows(0))]))
    writer.abort([done, None])
    assert _names(tmp_path) == []


@pytest.mark.parametrize(
    ("modified", "text"),
    [
        ({"kind": "rows"}, "a change has the kind 'rows'; it must be one of row, static"),
        ({"kind": None}, "a change has the kind None"),
        ({"key": None}, "a change has no key"),
        ({"key": b"other"}, "the key 0x6f74686572 has another token"),
        ({"token": 5}, "the key 0x00000001 has another token"),
        ({"token": None}, "the key 0x00000001 has another token"),
        ({"position": None}, "a row without a position"),
    ],
)
def test_changes_that_were_modified(tmp_path: Path, modified: dict[str, Any], text: str) -> None:
    with pytest.raises(WritetimeError, match=text):
        _writer(tmp_path).write(iter([batch([*_rows(5), write(1, 1, 7, v="a") | modified])]))


def test_a_commit_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the disk is full: the last of the files cannot be moved."""
    (tmp_path / "kept").touch()
    writer = _writer(tmp_path)
    done = [writer.write(iter([batch(_rows(n))])) for n in (0, 5)]
    moves = writer._moves([message.name for message in done if message.name])
    assert [target.endswith("TOC.txt") for _, target in moves] == [False] * (len(moves) - 2) + [True] * 2
    monkeypatch.setattr(writer, "_moves", lambda _: [*moves[:-1], (moves[-1][0] + ".gone", moves[-1][1])])
    with pytest.raises(FileNotFoundError):
        writer.commit(done)
    writer.abort(done)
    assert _names(tmp_path) == ["kept"]


def test_a_job_without_changes(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "out")
    writer.commit([writer.write(iter([])), writer.write(iter([batch([])])), None])
    assert _names(tmp_path / "out") == []


def test_arrow_types_of_spark(tmp_path: Path) -> None:
    """Spark marks what is never null, and may use large offsets. Columns without changes may be missing."""
    made = pa.Table.from_batches([batch(_rows(0))]).drop_columns(["w", "origin"])
    large = {"kind": pa.large_string(), "key": pa.large_binary(), "token": pa.int64()}
    fields = [f.with_type(large[f.name]).with_nullable(False) if f.name in large else f for f in made.schema]
    writer = _writer(tmp_path)
    writer.commit([writer.write(iter(made.cast(pa.schema(fields)).to_batches()))])
    assert _state(tmp_path).equals(merge([batch(_rows(0))], SCHEMA))


def _without(name: str) -> Any:
    return from_arrow_schema(change_schema(SCHEMA).remove(change_schema(SCHEMA).get_field_index(name)))


@pytest.mark.parametrize(
    ("options", "fields", "text"),
    [
        ({"version": "da"}, FIELDS, "the option version is 'da'; it must be one of nb, oa, me"),
        ({"compressor": "lz4"}, FIELDS, "the option compressor is 'lz4'; it must be one of LZ4Compressor, .*, none"),
        ({"block_size": "0"}, FIELDS, "the option block_size is '0'; it must be a positive number"),
        ({"schema": CQL + ";" + CQL.replace("items", "more")}, FIELDS, "the option schema holds 2 tables"),
        ({"path": None}, FIELDS, r"needs a path: load\(PATH\) or save\(PATH\)"),
        ({"schema": None}, FIELDS, "needs the option schema to write"),
        (
            {"schema": CQL.replace("w int", "x int")},
            FIELDS,
            "the DataFrame has the field w; changes of shop.items have",
        ),
        ({"schema": CQL.replace("w int", "w text")}, FIELDS, "the DataFrame has w as struct<value:int,.*: cast it"),
        ({}, _without("position"), "the DataFrame lacks position"),
        ({}, _without("n"), "the DataFrame lacks n"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, str | None], fields: Any, text: str) -> None:
    given = {"schema": CQL, "path": str(tmp_path), **options}
    source = SSTableSource({name: value for name, value in given.items() if value is not None})
    with pytest.raises(WritetimeError, match=text):
        source.writer(fields, overwrite=False)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source = SSTableSource({"schema": CQL, "path": str(tmp_path)})
    with pytest.raises(WritetimeError, match=r'overwrites no SSTables: write with mode\("append"\)'):
        source.writer(FIELDS, overwrite=True)


def test_a_file_system_of_fsspec(tmp_path: Path) -> None:
    writer = SSTableSource({"schema": CQL, "path": f"local://{tmp_path}"}).writer(FIELDS, overwrite=False)
    writer.commit([writer.write(iter([batch(_rows(0))]))])
    (found,) = find_sstables(f"local://{tmp_path}")
    assert replace(found, filesystem=None) == Location(None, str(tmp_path), "nb", "1", "big")  # type: ignore[arg-type]
    assert _state(tmp_path).num_rows == 10
