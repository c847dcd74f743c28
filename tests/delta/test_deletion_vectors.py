"""Deletion vectors: other engines leave out the rows in our vectors, and vectors are read as they were written.

Oracle: other engines: they leave out the rows that the test marked.
"""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyroaring
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.view_readers import READERS
from writetime.core.errors import WritetimeError
from writetime.delta import deletion_vectors
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.buckets import ALL
from writetime.delta.deletion_vectors import DeletionVector, read_vector, write_vectors
from writetime.delta.parquet import write_file
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange

# More than two of the bitmap's containers, of 65,536 rows each.
_ROWS = 150_000


def rows(kind: str) -> set[int]:
    """Rows to mark, so that the bitmap has containers of each kind: arrays, bitmaps and runs."""
    random = np.random.default_rng(1)
    made: dict[str, Callable[[], np.ndarray]] = {
        "first and last": lambda: np.array([0, _ROWS - 1]),
        "few": lambda: random.integers(0, _ROWS, 300),
        "many": lambda: random.integers(0, _ROWS, 100_000),
        "a run": lambda: np.arange(60_000, 140_000),
        "all but one": lambda: np.delete(np.arange(_ROWS), 77_777),
    }
    return set(made[kind]().tolist())


@pytest.mark.parametrize("kind", ["first and last", "few", "many", "a run", "all but one"])
def test_other_engines_leave_out_marked_rows(tmp_path: Path, kind: str) -> None:
    storage = Storage(str(tmp_path))
    table = BucketedTable(storage)
    table.create(pa.schema([("n", pa.int64())]), 1, {})
    numbers = pa.table({"n": range(_ROWS)})
    table.append([write_file(storage, numbers, ALL, None, name) for name in ("a-", "b-")], "test", 1)
    before = table.load()
    first, second = before.files
    marked = rows(kind)
    found = write_vectors(storage, {first.path: pyroaring.BitMap(marked), second.path: pyroaring.BitMap([5])})
    marks = [(first, found[first.path]), (second, found[second.path])]
    table.commit(before, TableChange(mark=marks, vectors=True))
    wanted = sorted([*(set(range(_ROWS)) - marked), *range(5), *range(6, _ROWS)])
    for name, read in READERS.items():
        assert np.array_equal(np.sort(read(str(tmp_path))["n"].to_numpy()), wanted), name
    for now in (table.load(), BucketedTable(storage).load()):
        assert sum(len(read_vector(storage, file.vector)) for file in now.files) == len(marked) + 1


@given(st.lists(st.sets(st.integers(0, 1 << 18), min_size=1, max_size=60), min_size=1, max_size=4))
@examples(25)
def test_vectors_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, several: list[set[int]]
) -> None:
    storage = Storage(str(tmp_path_factory.mktemp("vectors")))
    found = write_vectors(storage, {str(i): pyroaring.BitMap(marked) for i, marked in enumerate(several)})
    with pytest.MonkeyPatch.context() as patch:
        # As another process reads them.
        patch.setattr(deletion_vectors, "_kept", OrderedDict())
        for i, marked in enumerate(several):
            assert set(read_vector(storage, DeletionVector.of_action(found[str(i)].action))) == marked


def test_a_vector_that_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path))
    vector = write_vectors(storage, {"a": pyroaring.BitMap(range(10))})["a"]
    monkeypatch.setattr(deletion_vectors, "_kept", OrderedDict())
    path = tmp_path / str(vector.path)
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    with pytest.raises(WritetimeError, match="its length or its checksum differs"):
        read_vector(storage, vector)
    path.unlink()
    with pytest.raises(WritetimeError, match="cannot be read"):
        read_vector(storage, vector)
