"""The time that an agent loses when nodes do not answer a query for truncations; no server is needed."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from cassandra import OperationTimedOut

from writetime.capture import scylla_agent
from writetime.core.config import ScyllaCdc
from writetime.scylla_cdc.offsets import Offset

# Of the driver.
_TIMEOUT = 10.0
_SECONDS = 600


class Marking(scylla_agent.LogAgent):
    """An agent of 20 tables with its own clock, whose tables advance all the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0
        self.answers = False
        self.marks: dict[str, int] = {}
        names = [f"ks.t{i}" for i in range(20)]
        offset = Offset(scylla_agent.now(), 0, 0, str(UUID(int=1)))
        vars(self).update(
            _settings=SimpleNamespace(scylla_cdc=ScyllaCdc()),
            _pace=scylla_agent.LogPace(),
            _session=None,
            metrics=SimpleNamespace(error=lambda _: None),
            _publisher=SimpleNamespace(mark=self._note, flush=lambda _: True),
            _progress=SimpleNamespace(offsets=dict.fromkeys(names, offset)),
            _tables=[scylla_agent._Table(name, 1.0) for name in names],
            _truncations={},
            _truncations_at=0,
            _next_truncations=0.0,
            _next_warning=0.0,
            _next_mark=0.0,
            snapshots=SimpleNamespace(is_pending=lambda _: False, taken_at=lambda _: 0, covers_until=lambda _: 0),
        )

    def _note(self, _: str, marks: Any) -> None:
        self.marks |= {name: mark.until for name, mark in marks.tables.items()}

    def _status(self, tables: Any) -> dict[str, Any]:
        return {"tables": len(tables)}

    def read(self, *_: object) -> dict[UUID, Any]:
        self.asked += 1
        if not self.answers:
            self.now += _TIMEOUT
            raise OperationTimedOut()
        return {}

    def run(self, seconds: float) -> None:
        """Let tables take steps, each a twentieth of a second, and announce all watermarks in between."""
        end = self.now + seconds
        while self.now < end:
            for table in self._tables:
                self.now += 0.05
                self._mark(table)
                if self.now >= self._next_mark:
                    self._announce_marks(cast(Any, None))


def test_tables_do_not_wait_for_an_unknown_truncation_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Marking()
    monkeypatch.setattr(scylla_agent, "time", SimpleNamespace(monotonic=lambda: agent.now))
    monkeypatch.setattr(scylla_agent, "read_cluster_truncations", agent.read)
    agent.run(_SECONDS)
    assert 10 <= agent.asked <= _SECONDS / (_TIMEOUT + scylla_agent.LogPace().mark) + 2
    # No watermark passes an unknown part.
    assert set(agent.marks.values()) == {0}
    agent.answers = True
    agent.run(2 * scylla_agent.LogPace().mark)
    assert min(agent.marks.values()) > 0
