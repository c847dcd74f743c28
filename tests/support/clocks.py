"""A wrong clock of this machine."""

import time

import pytest

_TIME, _TIME_NS = time.time, time.time_ns


def set_clock(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    """Set the clock of this process ahead of the right time by so many seconds."""
    monkeypatch.setattr(time, "time", lambda: _TIME() + ahead)
    monkeypatch.setattr(time, "time_ns", lambda: _TIME_NS() + ahead * 10**9)
