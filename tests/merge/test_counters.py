"""Counters whose greatest clock is not that of the latest write, and whose deletions are covered by other deletions."""

import itertools
from typing import Any

import pytest

from tests.support.generated import COUNTERS, NODES, Change, table
from writetime.changes.position import AT, PARTITION_POSITION
from writetime.merge import live_rows, merge

KEY: Change = {"p": 1, "key": b"\0\0\0\1", "token": 1}
ROW: Change = {**KEY, "kind": "row", "c": "1", "d": 0, "position": b"\x40" + AT}


def counted(at: int, *shards: tuple[str, int, int]) -> Change:
    """Counts of nodes, each with its clock, written at a time."""
    names = ("id", "clock", "count")
    parts = [dict(zip(names, s, strict=True)) | {"kind": "global", "write_time": at} for s in shards]
    return {**ROW, "n": {"write_time": at, "tombstone": False, "shards": parts}}


def uncounted(at: int) -> Change:
    """The counter is deleted."""
    return {**ROW, "n": {"write_time": at, "tombstone": True, "deletion_time": 100}}


def deleted(at: int) -> Change:
    """The partition is deleted."""
    return {
        **KEY,
        "kind": "partition_tombstone",
        "position": PARTITION_POSITION,
        "tombstone": {"write_time": at, "deletion_time": 100},
    }


A, B = NODES


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        # The greatest clock of each node, and at a tie the larger count.
        ([counted(1, (A, 1, 5), (B, 2, 7)), counted(2, (A, 3, 1)), counted(3, (B, 2, 8))], 9),
        # The greatest clock is covered by a deletion that may come later, and a smaller one is not.
        ([counted(1, (A, 2, 7)), counted(5, (A, 1, 4)), deleted(3)], 4),
        # A deletion covers only earlier writes, whatever was written to other nodes later.
        ([counted(1, (A, 1, 7)), counted(5, (B, 1, 4)), deleted(3)], 4),
        # A deleted counter hides later increments, unless its deletion is covered itself.
        ([counted(1, (A, 1, 7)), uncounted(2), counted(5, (A, 2, 9))], None),
        ([counted(1, (A, 1, 7)), uncounted(2), counted(5, (A, 2, 9)), deleted(3)], 9),
        # A counter without a shard is 0, and so does it add nothing; it lives as others do.
        ([counted(1)], 0),
        ([counted(1), counted(5)], 0),
        ([counted(1), counted(5, (A, 1, 4))], 4),
        ([counted(5), counted(1, (A, 1, 4))], 4),
        ([counted(5), counted(1, (A, 1, 4)), deleted(3)], 0),
        ([counted(1), deleted(3)], None),
        ([counted(5), uncounted(2), deleted(3)], 0),
        ([counted(5), uncounted(2)], None),
    ],
)
def test_in_any_order_and_any_pieces(changes: list[Change], wanted: int | None) -> None:
    states: list[Any] = []
    for order in itertools.permutations(changes):
        states.append(merge([table(list(order), COUNTERS)], COUNTERS))
        pieces = [table([change], COUNTERS) for change in order]
        state = merge([], COUNTERS)
        # Each once, and then once more.
        for piece in pieces:
            state = merge([state, piece], COUNTERS)
        states.append(state)
        states.append(merge([state, *pieces], COUNTERS))
    assert all(state.equals(states[0]) for state in states)
    found = live_rows(states[0], COUNTERS, 0).to_pylist()
    assert [row["n"] for row in found] == ([] if wanted is None else [wanted])
