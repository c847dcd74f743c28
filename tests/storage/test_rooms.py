"""The memory that compiled code writes to: there are few mappings, and arrays do not overlap."""

import mmap
from itertools import pairwise

import numpy as np
import pytest

from writetime.schema.cql import parse_table
from writetime.storage.kernel import allocate
from writetime.storage.plan import Buffers, Plan


def spans(arrays: list[np.ndarray]) -> list[tuple[int, int]]:
    return sorted((array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays if array.nbytes)


def mapped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each mapping."""
    sizes: list[int] = []
    make = mmap.mmap

    def mapping(fileno: int, length: int) -> mmap.mmap:
        sizes.append(length)
        return make(fileno, length)

    monkeypatch.setattr(allocate.mmap, "mmap", mapping)
    return sizes


@pytest.mark.parametrize("largest", [100, 1 << 16])
def test_arrays_share_mappings(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    sizes = mapped(monkeypatch)
    wanted = [(count, dtype) for count in (0, 1, 7, 64, 1000, 0) for dtype in (np.uint8, np.int32, np.int64)]
    arrays = allocate.rooms(wanted, largest)
    assert [(len(array), array.dtype) for array in arrays] == wanted
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans(arrays)))
    assert not any(array.any() for array in arrays)
    assert (len(sizes) == 1) is (largest > 100)
    assert allocate.rooms([]) == []


def test_many_columns_take_few_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have 65,530; one for each buffer of a node's columns was too many."""
    columns = ", ".join(f"t{i} text, l{i} list<int>, i{i} int" for i in range(300))
    plans: list[Plan] = []
    for i in range(20):
        schema = parse_table(f"CREATE TABLE ks.t{i} (k int, c text, {columns}, PRIMARY KEY (k, c))")
        plans.append(Plan(schema, None if i < 3 else (), plans[-1].end if plans else 0))
    sizes = mapped(monkeypatch)
    buffers = Buffers(plans, 1 << 20)
    arrays = [array for each in (*buffers.arrays.values(), *buffers.table_arrays) for array in each.values()]
    assert len(arrays) > 10_000
    assert len(sizes) < sum(sizes) // (200 << 20) + 2
    assert max(sizes) < 300 << 20
    assert all(end <= start for (_, end), (start, _) in pairwise(spans([*arrays, buffers.columns, buffers.tables])))
