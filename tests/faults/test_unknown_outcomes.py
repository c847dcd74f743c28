"""The database applies a conditional write and its reply is lost: the sink must find the outcome, and not guess it."""

from collections.abc import Callable

import pytest

from tests.faults.stage import Stage

pytestmark = pytest.mark.long

# How often more events are sent until a reply is lost.
_MOST_TIMES = 20


@pytest.mark.parametrize("mode", ["lwt", "lwt-batch"])
def test_lost_replies_of_conditional_writes(stage: Callable[..., Stage], mode: str, is_long: bool) -> None:
    s = stage(mode=mode)
    s.ledger.events(600 if is_long else 300, users=30, repeated=0.1)
    s.proxy.loss = 0.2
    s.sink()
    s.wait_for_writes(40)
    s.ledger.events(200 if is_long else 100, users=30, repeated=0.1)
    s.wait_for_writes(40)
    for _ in range(_MOST_TIMES):
        if s.proxy.lost:
            break
        # Batches are few writes, and all may have been answered.
        s.ledger.events(100, users=30, repeated=0.1)
        s.wait_for_writes(40)
    assert s.proxy.lost, f"the proxy lost no reply of {s.proxy.replies}, though it should lose one in five"
    s.proxy.loss = 0.0
    s.finish()
