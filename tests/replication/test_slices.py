"""Ranges of a partition as slices.

Oracle: the order of positions, which is that of the database.
"""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.changes.clusterings import clustering_decoder
from writetime.changes.position import AFTER, BEFORE, position_encoder
from writetime.replication.slices import Slice, slices_of
from writetime.schema.table import Column
from writetime.schema.types import Native

_INT = Native("int")
_VALUES = range(3)


def number(value: bytes | None) -> int:
    assert value is not None
    return int.from_bytes(value, "big", signed=True)


def holds(found: Slice, row: tuple[int, ...]) -> bool:
    """Whether a statement with these conditions deletes a row."""
    if any(number(value) != own for value, own in zip(found.equal, row, strict=False)):
        return False
    checks = {"<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}
    return all(checks[operator](row[len(found.equal)], number(value)) for operator, value in found.bounds)


bounds = st.tuples(st.lists(st.sampled_from(_VALUES), max_size=3), st.sampled_from([BEFORE, AFTER]))


@given(start=bounds, end=bounds, order=st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_each_row_of_a_range_is_in_one_slice(
    start: tuple[list[int], bytes], end: tuple[list[int], bytes], order: tuple[bool, bool, bool]
) -> None:
    clustering = [Column(f"c{n}", _INT, is_reversed) for n, is_reversed in enumerate(order)]
    encode = position_encoder(clustering)

    def position(values: tuple[int, ...] | list[int], kind: bytes) -> bytes:
        return encode([value.to_bytes(4, "big", signed=True) for value in values], kind)

    first, last = position(*start), position(*end)
    if first >= last:
        return
    found = list(slices_of(first, last, clustering, clustering_decoder(clustering)))
    for row in product(_VALUES, repeat=3):
        is_within = first <= position(row, b"\x38") < last
        assert sum(holds(each, row) for each in found) == is_within, (row, found)
    # The static row stays.
    assert all(each.equal or each.bounds for each in found)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_whole_partition_is_two_slices(reverse: bool) -> None:
    clustering = [Column("c", Native("timeuuid"), reverse)]
    encode = position_encoder(clustering)
    found = list(slices_of(encode([], BEFORE), encode([], AFTER), clustering, clustering_decoder(clustering)))
    assert [operator for each in found for operator, _ in each.bounds] == ["<", ">="]
