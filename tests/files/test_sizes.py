"""The size of a file's rows in memory, by which tasks are chosen, and of its row groups."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.made import add, new_table, write
from writetime.delta import buckets, parquet
from writetime.delta.parquet import HOT_LAYOUT, WrittenFile, uncompressed_size, write_file
from writetime.delta.storage import Storage
from writetime.delta.versions import DataFile
from writetime.files.cache import Cache
from writetime.lake import packing, state
from writetime.lookup.keys import ALL_TOKENS


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def file_of(written: WrittenFile) -> DataFile:
    return DataFile(written.path, written.bucket, written.rows, written.size, 0)


def test_long_values_that_repeat_count_in_full(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows are short, so that the column has a dictionary, or it comes with one."""
    long = [f"{n:02}" * 1500 for n in range(30)]
    texts = pa.array(["a", "b"] * 600 + long * 900)
    for column in (texts, texts.dictionary_encode()):
        rows = pa.table({"token": pa.array(range(len(texts))), "v": column})
        written = write_file(storage, rows, -1, rows["token"], layout=HOT_LAYOUT)
        assert written.size < 8 << 20
        assert uncompressed_size(storage, written.path) > 27_000 * 3000
        assert pq.read_table(f"{storage.address}/{written.path}")["v"].to_pylist() == texts.to_pylist()
        monkeypatch.setattr(buckets, "MOST_ROW_BYTES", 24 << 20)
        assert state.parts_of(storage, [file_of(written)], 16) == 4


def test_a_file_of_another_program_has_its_size_before_compression(storage: Storage) -> None:
    pq.write_table(pa.table({"v": ["x" * 100_000]}), f"{storage.address}/a.parquet")
    assert 100_000 < uncompressed_size(storage, "a.parquet") < 400_000


def test_no_file_is_read_for_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by another process. A step may look at many files that it leaves as they are."""
    table = new_table(tmp_path, buckets=4)
    for number in range(40):
        add(table, [write(number, 1, 1, v="x" * 1000)], number)
    storage, files = table.changes.storage, table.changes.load().files
    monkeypatch.setattr(parquet.pq, "ParquetFile", None)
    assert all(1000 < uncompressed_size(storage, file.path) < 2000 for file in files)
    assert state.parts_of(storage, files, 4) == 1
    monkeypatch.setattr(buckets, "MOST_ROW_BYTES", 2000)
    assert state.parts_of(storage, files, 4) == 4
    monkeypatch.setattr(packing, "SORTED_AT_ONCE", 16_000)
    assert packing.to_pack(storage, files) == []


def test_nulls_do_not_make_row_groups_small(storage: Storage) -> None:
    """100 columns, each with a value in one row of a hundred: 100 MiB of nulls."""
    count = 1 << 16
    cells = [
        pa.array([{"value": n, "write_time": 1} if n % 100 == c % 100 else None for n in range(count)])
        for c in range(3)
    ]
    rows = pa.table({"token": pa.array(range(count)), **{f"c{c}": cells[c % 3] for c in range(100)}})
    written = write_file(storage, rows, 0, rows["token"], layout=HOT_LAYOUT)
    with pq.ParquetFile(f"{storage.address}/{written.path}") as file:
        assert file.num_row_groups <= 2
    # Long values still make them small.
    texts = pa.array(["x" * 100_000 if n % 100 == 0 else None for n in range(count)])
    rows = pa.table({"token": pa.array(range(count)), "v": texts})
    written = write_file(storage, rows, 0, rows["token"], layout=HOT_LAYOUT)
    with pq.ParquetFile(f"{storage.address}/{written.path}") as file:
        assert file.num_row_groups >= 4


@pytest.mark.parametrize("smallest", [0, 1 << 20])
def test_rows_of_files_of_different_sizes_are_alike(tmp_path: Path, smallest: int) -> None:
    """A look-up conforms and merges those of all files at once, and not those of each file."""
    table = new_table(tmp_path / "lake")
    for number in (1, 2, 3):
        add(table, [write(n, 1, number, v="a") for n in range(number)], number)
    files, cache = table.changes.load().files, Cache(tmp_path / "cache", 1 << 30, smallest)
    tokens = ALL_TOKENS.first, ALL_TOKENS.last
    read = partial(cache.read, table.changes.storage, read_from=lambda decoded: decoded.between(*tokens))
    batches = [batch for file in files for batch in read(file)]
    assert sum(batch.num_rows for batch in batches) == 6
    assert len({batch.schema for batch in batches}) == 1
