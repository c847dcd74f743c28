"""The number of checks of a condition, with a clock of the test."""

import pytest

from writetime.core import waiting


@pytest.mark.parametrize(("takes", "checks", "ended"), [(0.0, 10, 1.125), (0.25, 3, 1.375), (0.75, 2, 1.75)])
def test_a_slow_check_is_made_less_often(
    monkeypatch: pytest.MonkeyPatch, takes: float, checks: int, ended: float
) -> None:
    """It is made once more at the end of the time, which no pause passes."""
    now, made = [0.0], []
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(waiting.time, "sleep", lambda seconds: now.append(now.pop() + seconds))

    def condition() -> bool:
        now[0] += takes
        made.append(now[0])
        return False

    assert not waiting.wait_until(condition, 1.0, 0.125)
    assert (len(made), now[0]) == (checks, ended)
