"""The sink is killed in the middle of its writes, again and again."""

from collections.abc import Callable

import pytest

from tests.faults.stage import Stage

KILLS = 2


@pytest.mark.parametrize(("mode", "bucket"), [("lwt", "none"), ("lwt-batch", "day"), ("upsert", "none")])
def test_kill_of_the_sink_mid_batch_loses_and_repeats_nothing(
    stage: Callable[..., Stage], mode: str, bucket: str
) -> None:
    # Small batches and late replies, so that there is something to be in the midst of.
    s = stage(mode=mode, bucket=bucket, batch_rows=5)
    s.proxy.delay = 0.1
    s.ledger.events(2000, users=60, repeated=0.1)
    for _ in range(KILLS):
        sink = s.sink()
        # The prologue of a connection is some ten replies; the rest are answers to writes, held back by the proxy.
        s.wait_for_writes(s.rng.randrange(15, 90))
        sink.kill()
    s.ledger.events(200, users=60, repeated=0.1)
    s.proxy.delay = 0.0
    s.sink()
    s.finish()
