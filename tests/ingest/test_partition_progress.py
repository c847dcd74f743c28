"""The progress of a partition, compared with a model that stores each offset.

Oracle: a model in the test that stores each offset.
"""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from writetime.ingest.partition_progress import MAX_METADATA_BYTES, PartitionProgress, decode_done, encode_done

gaps = st.one_of(st.just(1), st.integers(1, 5), st.integers(1, 10**6))


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[range]]:
    """Return a floor and runs above it, in order and apart."""
    floor = draw(st.integers(0, 2**62))
    found = []
    position = floor
    for gap, length in draw(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**6)), max_size=600)):
        found.append(range(position + gap, position + gap + length))
        position = found[-1].stop
    return floor, found


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[tuple[int, bool]]]:
    """Return a start and the offsets delivered after it, with gaps, each done or not."""
    start = draw(st.integers(0, 2**40))
    offset = start - 1
    delivered = []
    for gap, done in draw(st.lists(st.tuples(gaps, st.booleans()), max_size=200)):
        offset += gap
        delivered.append((offset, done))
    return start, delivered


def _replay(start: int, delivered: list[tuple[int, bool]], order: st.DataObject) -> PartitionProgress:
    progress = PartitionProgress(start)
    for offset, _ in delivered:
        assert progress.deliver(offset)
    for offset in order.draw(st.permutations([offset for offset, done in delivered if done])):
        progress.finish(offset)
    return progress


@given(histories(), st.data())
def test_the_floor_is_the_lowest_offset_that_was_delivered_and_is_not_done(
    history: tuple[int, list[tuple[int, bool]]], order: st.DataObject
) -> None:
    start, delivered = history
    progress = _replay(start, delivered, order)
    next_offset = delivered[-1][0] + 1 if delivered else start
    not_done = [offset for offset, done in delivered if not done]
    assert progress.next_offset == next_offset
    assert progress.floor == min(not_done, default=next_offset)
    assert progress.idle == (not not_done)


@given(histories(), st.data())
def test_the_floor_never_goes_back(history: tuple[int, list[tuple[int, bool]]], order: st.DataObject) -> None:
    start, delivered = history
    progress = PartitionProgress(start)
    floor = progress.floor
    waiting: list[int] = []
    for offset, done in delivered:
        progress.deliver(offset)
        if done:
            waiting.append(offset)
        if waiting and order.draw(st.booleans()):
            progress.finish(waiting.pop(order.draw(st.integers(0, len(waiting) - 1))))
        assert progress.floor >= floor
        floor = progress.floor


@given(histories(), st.data())
def test_a_restart_repeats_only_unfinished_work(
    history: tuple[int, list[tuple[int, bool]]], order: st.DataObject
) -> None:
    start, delivered = history
    before = _replay(start, delivered, order)
    after = PartitionProgress(before.floor, before.metadata())
    for offset, done in delivered:
        if offset >= before.floor:
            assert after.deliver(offset) == (not done)
    assert after.floor == before.floor
    assert after.metadata() == before.metadata()


@given(histories(), st.data(), st.integers(0, 200))
def test_work_of_an_earlier_run_survives_a_restart_half_way(
    history: tuple[int, list[tuple[int, bool]]], order: st.DataObject, read: int
) -> None:
    start, delivered = history
    first = _replay(start, delivered, order)
    again = [(offset, done) for offset, done in delivered if offset >= first.floor]
    second = PartitionProgress(first.floor, first.metadata())
    for offset, _ in again[:read]:
        second.deliver(offset)
    third = PartitionProgress(second.floor, second.metadata())
    for offset, done in again:
        if offset >= second.floor:
            assert third.deliver(offset) == (not done)


def test_the_end_of_a_partition_counts_past_control_records() -> None:
    progress = PartitionProgress(10)
    progress.deliver(12)
    progress.reach(14)
    assert progress.floor == 12
    progress.finish(12)
    assert progress.floor == 14
    progress.reach(13)
    assert progress.floor == 14


@given(runs())
def test_metadata_names_runs_that_are_done_and_fits(case: tuple[int, list[range]]) -> None:
    floor, done = case
    metadata = encode_done(floor, done)
    known = decode_done(floor, metadata)
    assert len(metadata.encode()) <= MAX_METADATA_BYTES
    assert known == done[: len(known)]
    assert len(known) == len(done) or len(metadata) > MAX_METADATA_BYTES - 25


@given(st.integers(0, 2**62), st.one_of(st.text(), st.text("done:+,0123456789").map("done:".__add__)))
def test_metadata_of_another_program_claims_nothing_or_is_well_formed(floor: int, metadata: str) -> None:
    known = decode_done(floor, metadata)
    assert all(run.start >= floor for run in known)
    assert all(a.stop <= b.start for a, b in pairwise(known))
