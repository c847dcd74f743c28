"""The events of generated histories: they rebuild the rows, each begins with the row of the previous one, and each
changes a row.

Oracle: our own second path: `replayed` events against `live_rows` of the merged state; for differences of values,
Python's comparison.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.event_replay import apply, in_order
from tests.support.examples import is_long_run
from tests.support.generated import SCHEMA, Change, change, table
from tests.support.lake_answers import view_rows
from writetime.lake.projection import EventBatch
from writetime.merge import live_rows, merge
from writetime.row_events.compare import different
from writetime.row_events.events import fitted_rows, row_events
from writetime.row_events.ids import siphash

EXAMPLES = settings(max_examples=100 if is_long_run() else 10)


def times_of(value: object) -> Iterator[int]:
    """All write times in a change."""
    if isinstance(value, dict):
        yield from ([value["write_time"]] if "write_time" in value else ())
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from times_of(part)


def covers(change: Change, key: bytes, position: bytes) -> bool:
    """Return whether a change is about a place."""
    if change["key"] != key:
        return False
    if change["kind"] == "range_tombstone":
        return change["position"] <= position < change["end"]
    return change["kind"] != "row" or change["position"] == position


def assert_write_times(events: pa.Table, changes: list[Change]) -> None:
    """Compare with all changes of a place."""
    for event in events.select(["key", "position", "write_time"]).to_pylist():
        those = [c for c in changes if covers(c, event["key"], event["position"])]
        assert event["write_time"] == max(time for change in those for time in times_of(change))


BATCHES = st.lists(st.tuples(st.lists(change(), max_size=5), st.integers(0, 2)), max_size=4)


@given(BATCHES)
@EXAMPLES
def test_replayed_events_are_the_rows(batches: list[tuple[list[Change], int]]) -> None:
    state = merge([], SCHEMA)
    before = fitted_rows(state, SCHEMA, 99_000_000)
    rows, seen, second, made = {}, set(), 99, []
    for sequence, (changes, seconds) in enumerate(batches, 1):
        second += seconds
        state = merge([state, table(changes)], SCHEMA)
        after = fitted_rows(state, SCHEMA, second * 1_000_000)
        events = row_events(before, after, SCHEMA, EventBatch(0, sequence, second * 1_000_000), state)
        events.validate(full=True)
        made += changes
        assert_write_times(events, made)
        apply([events], rows)
        assert in_order(rows) == view_rows([live_rows(state, SCHEMA, second)])
        ids = set(events["event_id"].to_pylist())
        assert len(ids) == events.num_rows
        assert not ids & seen
        seen |= ids
        again = row_events(before, after, SCHEMA, EventBatch(0, sequence, second * 1_000_000), state)
        assert again.equals(events)
        assert row_events(after, after, SCHEMA, EventBatch(0, sequence, 0)).num_rows == 0
        before = after


@given(st.lists(change(), min_size=1, max_size=5), st.lists(change(), min_size=1, max_size=5))
@EXAMPLES
def test_rows_differ_as_python_compares_them(ones: list[Change], others: list[Change]) -> None:
    size = min(len(ones), len(others))
    one, other = table(ones[:size]), table(others[:size])
    for name in one.column_names:
        a, b = one[name].combine_chunks(), other[name].combine_chunks()
        wanted = [x != y for x, y in zip(a.to_pylist(), b.to_pylist(), strict=True)]
        assert different(a, b).tolist() == wanted


def test_numbers_are_compared_by_their_bits() -> None:
    nan = float("nan")
    for arrow in (pa.float32(), pa.float64()):
        one = pa.array([nan, 0.0, 1.5, None, None], arrow)
        other = pa.array([nan, -0.0, 1.5, None, nan], arrow)
        assert different(one, other).tolist() == [False, True, False, False, True]
        lists = pa.array([[nan], [1.0, None], None, []], pa.list_(arrow))
        assert not different(lists, lists).any()
        assert different(lists.slice(1), lists.slice(0, 3)).tolist() == [True, True, True]


def test_inexact_numbers() -> None:
    one = pa.array([10, 10, None, None, -5], pa.int64())
    other = pa.array([13, 14, None, 1, -8], pa.int64())
    assert different(one, other, 3).tolist() == [False, True, False, True, False]
    lists, others = (pa.array([[a], [a, None], None, []], pa.list_(pa.int64())) for a in (10, 13))
    assert not different(lists, others, 3).any()
    assert different(lists, others, 2).tolist() == [True, True, False, False]


def test_ids_are_siphash() -> None:
    # The output of `openssl mac -macopt hexkey:000102...0f -macopt size:16 SIPHASH` for the length and the two values.
    wanted = {
        (b"", b""): "c293ab68efe6f296bd92a49d6257801d",
        (b"abc", b""): "d171c5e3d1662a52c2783281abdc47ca",
        (b"abcdefgh", b"xyz"): "19dd319bcaf5946bb936f89af050d675",
        (b"a" * 300, b"q" * 17): "b356a079a42d9ecec9b5080fb8368b08",
    }
    k0, k1 = np.frombuffer(bytes(range(16)), "<u8")
    for pair, digest in wanted.items():
        parts = [(np.array([0, len(x)], np.int32), np.frombuffer(x, np.uint8)) for x in pair]
        assert siphash(k0, k1, *parts[0], *parts[1]).tobytes().hex() == digest
