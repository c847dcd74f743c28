"""The pauses of an agent that cannot release segments, because live changes wait meanwhile; no server is needed."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from writetime.capture import segment_releases

_SECONDS = 1800
# Between two completed segments.
_EVERY = 10


class Releasing(segment_releases.SegmentReleases):
    """Releases with a clock of their own: an upload takes half a second, one that hangs half a minute."""

    def __init__(self, hangs: Callable[[int], bool], at_first: int = 1, every: int = _EVERY) -> None:
        self.now = 0.0
        self.failures: list[tuple[float, float]] = []
        self._at_first, self._every = at_first, every
        self.released: set[int] = set()
        self.attempts: Counter[int] = Counter()
        self._hangs = hangs
        progress = SimpleNamespace(segments=defaultdict(lambda: SimpleNamespace(finished=True, kept=False)))
        super().__init__(cast(Any, progress), cast(Any, None), cast(Any, SimpleNamespace(error=id)), 1.0)

    def _release_or_set_aside(self, segment: Any, progress: Any) -> None:
        del progress
        self.attempts[segment.id] += 1
        if self._hangs(segment.id):
            self.failures.append((self.now, self.now + 30))
            self.now += 30
            raise OSError("the archive does not answer")
        self.now += 0.5
        self.released.add(segment.id)

    def run(self) -> None:
        while self.now < _SECONDS:
            there = range(self._at_first + int(self.now) // self._every)
            waiting: list[Any] = [SimpleNamespace(id=i, name=str(i)) for i in there if i not in self.released]
            self.release_finished(waiting)
            self.now += 0.5


def simulated(monkeypatch: pytest.MonkeyPatch, hangs: Callable[[int], bool]) -> Releasing:
    made = Releasing(hangs)
    monkeypatch.setattr(segment_releases, "time", SimpleNamespace(monotonic=lambda: made.now))
    made.run()
    return made


def test_a_segment_that_hangs_is_tried_once_per_growing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if others are released all the time, which wait for no more than its attempt."""
    found = simulated(monkeypatch, lambda segment: segment == 0)
    assert 15 <= found.attempts[0] <= 25
    assert len(found.released) >= _SECONDS // _EVERY - 5


def test_an_archive_that_does_not_answer_is_tried_once_per_growing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 15 <= simulated(monkeypatch, lambda _: True).attempts.total() <= 30


@pytest.mark.parametrize("at_first", [1, 2, 3, 5])
def test_no_attempt_follows_a_failure_at_once(monkeypatch: pytest.MonkeyPatch, at_first: int) -> None:
    """Neither a retry nor one with another segment, though no segment is added."""
    made = Releasing(lambda _: True, at_first, every=_SECONDS)
    monkeypatch.setattr(segment_releases, "time", SimpleNamespace(monotonic=lambda: made.now))
    made.run()
    pauses = [later - ended for (_, ended), (later, _) in itertools.pairwise(made.failures)]
    assert len(pauses) >= 10
    # Each is as long as it should be, by the clock's half seconds.
    assert all(pause >= min(2**number, 60) for number, pause in enumerate(pauses)), pauses


def test_segments_that_failed_are_released_together_once_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Releasing(lambda _: made.now < _SECONDS / 2)
    monkeypatch.setattr(segment_releases, "time", SimpleNamespace(monotonic=lambda: made.now))
    made.run()
    assert len(made.released) >= _SECONDS // _EVERY - 2
