"""The order of items, compared with Python's.

Oracle: Python's `sorted`.
"""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from writetime.merge.order import group_by

BYTES = st.lists(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]), max_size=10).map(bytes)
ITEM = st.tuples(st.integers(-1, 1), st.sampled_from([b"a", b"b"]), BYTES)


@given(st.lists(ITEM, max_size=120))
@examples(200)
def test_groups_are_numbered_in_order(items: list[tuple[int, bytes, bytes]]) -> None:
    first = np.array([item[0] for item in items], np.int64)
    second, third = (pa.array([item[i] for item in items], pa.binary()) for i in (1, 2))
    group, head, outer = group_by(first, second, third)
    groups = sorted(set(items))
    assert [groups[g] for g in group] == items
    assert [items[h] for h in head] == groups
    partitions = sorted({item[:2] for item in items})
    assert [partitions[o] for o in outer] == [item[:2] for item in groups]
