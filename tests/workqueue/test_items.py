"""Ids that are times: ordered, unique, and compatible with other libraries.

Oracle: the clock that the test sets, and Python's `uuid`.
"""

import uuid
import zlib
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from writetime.workqueue.items import IdMaker, bucket_of, first_id, instant, shard_of, time_of


@given(st.lists(st.integers(0, 2**47), min_size=1, max_size=50))
def test_ids_grow_whatever_the_clock_does(micros: list[int]) -> None:
    maker = IdMaker()
    made = [maker.make(m) for m in micros]
    assert [i.bytes for i in made] == sorted({i.bytes for i in made})
    assert all(i.version == 7 and i.variant == uuid.RFC_4122 for i in made)
    assert time_of(made[0]) == micros[0] // 1000
    assert all(first_id(time_of(i)) <= i < first_id(time_of(i) + 1) for i in made)


def test_the_example_of_rfc_9562() -> None:
    example = uuid.UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")
    assert instant(time_of(example)) == datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)
    assert bucket_of(example, 3600) == datetime(2022, 2, 22, 19, tzinfo=UTC).timestamp() * 1000


def test_a_delayed_id_has_its_time() -> None:
    assert time_of(IdMaker().make_delayed(1_700_000_000_123)) == 1_700_000_000_123


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.integers(1, 1024))
def test_shards_are_never_negative(key: str, shards: int) -> None:
    item_id = IdMaker().make(1)
    assert shard_of(key, item_id, shards) == zlib.crc32(key.encode()) % shards
    assert 0 <= shard_of(None, item_id, shards) < shards
