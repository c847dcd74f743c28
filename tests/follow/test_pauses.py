"""The pauses of a step that fails."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from writetime.core import config
from writetime.core.errors import WritetimeError
from writetime.follow import steps
from writetime.follow.steps import Step
from writetime.view.expected_rows import Unexpected


@pytest.mark.parametrize("error", [Unexpected("a value"), WritetimeError("no")])
def test_new_changes_do_not_cut_a_pause(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Each attempt of a view that its expectations hold computes and checks all rows since the last good one."""
    now = 1_000.0
    clock = SimpleNamespace(monotonic=lambda: now, thread_time=lambda: 0.0, time=lambda: 1e9 + now)
    monkeypatch.setattr(steps, "time", clock)
    step = Step(config.load(), "view", "shop.items", 1.0)

    def fail() -> int:
        raise error

    attempts = []
    while now < 1_600:
        step.begin()
        if step.is_due:
            attempts.append(now)
            assert not step.attempt(fail)
        now += 0.5
    pauses = [after - before for before, after in pairwise(attempts)]
    # A fix of the rows is seen after a minute at most.
    assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert set(pauses[8:]) == {60}
    assert step.attempt(lambda: 3)
    assert (step.is_behind, step.fault) == (False, None)
