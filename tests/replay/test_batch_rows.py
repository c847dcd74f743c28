"""Batches are distributed to tasks and become rows. `tests/assets/test_replay.py` reads them in Spark."""

import pyarrow as pa

from writetime.core.config import Settings
from writetime.replay import Publisher, replay, sealed
from writetime.replay.batch_rows import SCHEMA, _ranges, _rows


def test_items_are_rows(replay_settings: Settings, queue: str) -> None:
    with Publisher(replay_settings, queue) as publisher:
        for sequence, count in enumerate((1, 0, 20_000, 3), 1):
            publisher.publish([b"%d" % i for i in range(count)], producer="p", sequence=sequence)
        publisher.publish([b"x" * 70_000] * 2)
    batches = list(replay(replay_settings, queue))
    wanted = [
        {
            "queue": queue,
            "n": batch.n,
            "position": position,
            "payload": item,
            "published_at": batch.seal.published_at,
            "producer": batch.seal.producer,
            "sequence": batch.seal.sequence,
        }
        for batch in batches
        for position, item in enumerate(batch.items)
    ]
    assert len(wanted) == 20_006
    rows = list(_rows(batches))
    assert [part.num_rows for part in rows] == [8192, 8192, 3622]
    assert pa.Table.from_batches(rows, SCHEMA).to_pylist() == wanted
    seals = sealed(replay_settings, queue, 1, 5)
    for split_bytes, ranges in ((1, [(n, n) for n in range(1, 6)]), (350_000, [(1, 3), (4, 5)]), (1 << 20, [(1, 5)])):
        assert list(_ranges(seals, split_bytes)) == [(queue, *ends) for ends in ranges]
    assert list(_ranges([], 1)) == []
