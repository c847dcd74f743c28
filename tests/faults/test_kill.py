"""The sink is killed in the middle of its writes, again and again."""

from collections.abc import Callable

import pytest

from tests.faults.stage import Stage

pytestmark = pytest.mark.long

KILLS = 2
# More than the sinks write until the last kill.
EVENTS, EVENTS_LONG = 800, 2000


@pytest.mark.parametrize(("mode", "bucket"), [("lwt", "none"), ("lwt-batch", "day"), ("upsert", "none")])
def test_kill_of_the_sink_mid_batch_loses_and_repeats_nothing(
    stage: Callable[..., Stage], mode: str, bucket: str, is_long: bool
) -> None:
    # Small batches and late replies, so that there is something to be in the midst of.
    s = stage(mode=mode, bucket=bucket, batch_rows=5)
    s.proxy.delay = 0.1
    s.ledger.events(EVENTS_LONG if is_long else EVENTS, users=60, repeated=0.1)
    # A sink that continues after a kill is killed, too: in a short run in one mode.
    for _ in range(KILLS if is_long or mode == "lwt-batch" else 1):
        sink = s.sink()
        # The prologue of a connection is some ten replies; the rest are answers to writes, held back by the proxy.
        s.wait_for_writes(s.rng.randrange(15, 90 if is_long else 60))
        sink.kill()
    s.ledger.events(100, users=60, repeated=0.1)
    s.proxy.delay = 0.0
    s.sink()
    s.finish()
