"""An error of a full disk, or of a file that may not grow, names the file."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from tests.support.disks import fill, largest_file, small_disk
from writetime.capture import state_files
from writetime.changes.model import change_schema
from writetime.cli.storage import write_changes
from writetime.core.errors import reason_of
from writetime.delta import parquet
from writetime.delta.commits import put_new
from writetime.delta.deletion_vectors import write_vectors
from writetime.delta.storage import Storage
from writetime.files import decoded
from writetime.schema.cql import parse_table

BYTES = 100_000
RANDOM = os.urandom(BYTES)
SCHEMA = parse_table("CREATE TABLE shop.items (id blob PRIMARY KEY)")


def export(output: Path) -> None:
    arrow, count = change_schema(SCHEMA), 10_000
    values = pa.array([os.urandom(8) for _ in range(count)])
    columns = [values.cast(f.type) if pa.types.is_binary(f.type) else pa.nulls(count, f.type) for f in arrow]
    batch = pa.RecordBatch.from_arrays(columns, names=arrow.names)
    write_changes(iter([(SCHEMA, batch)]), [SCHEMA], None, output, stats=False)


# Each writes more than a limit into a folder.
WRITERS: dict[str, Callable[[Path], object]] = {
    "state": lambda folder: state_files.write_json(folder / "out", {"a": RANDOM.hex()}),
    "lines": lambda folder: state_files.write_lines(folder / "out", [RANDOM.hex()]),
    "more lines": lambda folder: state_files.append_lines(folder / "out", [RANDOM.hex()]),
    "copy": lambda folder: state_files.copy_file(folder.parent / "source", folder / "out"),
    "decoded": lambda folder: decoded.write(pq.ParquetFile(folder.parent / "parquet"), folder / "out", BYTES),
    "data file": lambda folder: parquet.write_file(Storage(str(folder)), pa.table({"a": [RANDOM]}), 0, None),
    "commit": lambda folder: put_new(Storage(str(folder)), "_delta_log/1.json", RANDOM),
    "vectors": lambda folder: write_vectors(Storage(str(folder)), {"a": BitMap(range(1, BYTES, 2))}),
    "parquet": lambda folder: export(folder / "out.parquet"),
    "arrow": lambda folder: export(folder / "out.arrow"),
}


@pytest.fixture(autouse=True)
def sources(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(RANDOM)
    pq.write_table(pa.table({"a": [RANDOM]}), tmp_path / "parquet")


def assert_named(write: Callable[[Path], object], folder: Path) -> None:
    with pytest.raises(Exception, match=r".") as failed:
        write(folder)
    assert str(folder) in reason_of(failed.value), repr(failed.value)


@pytest.mark.parametrize("size", [0, 5_000])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_that_may_not_grow_is_named(writer: str, size: int, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def limited(folder: Path) -> None:
        with largest_file(size):
            WRITERS[writer](folder)

    assert_named(limited, folder)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_on_a_full_disk_is_named(writer: str, tmp_path: Path) -> None:
    with small_disk(tmp_path, 512) as disk:
        fill(disk, free=20_000)
        assert_named(WRITERS[writer], disk)
