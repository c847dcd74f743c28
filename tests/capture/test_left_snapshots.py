"""An agent is killed at each step of a snapshot, and the next one finds a node whose nodetool fails for a while."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast
from uuid import UUID, uuid1

import pytest

from tests.support.made import SCHEMA
from writetime.capture.change_publisher import ChangePublisher
from writetime.capture.metrics import AgentMetrics
from writetime.capture.snapshots import Snapshots, TakenSnapshot
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError

TABLE = replace(SCHEMA, id=uuid1())
# The agent takes a snapshot without SSTables, and deletes it. It is killed before or after each of these.
MOMENTS = 4


class Killed(BaseException):
    """No code may handle this, like the kill of a process."""


class Node:
    """The snapshots of a node, whose nodetool fails some times. The agent is killed at a moment, if one is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failures = 0
        self.killed_at: int | None = None
        self._moment = 0

    def take(self, tables: Mapping[str, UUID], tag: str) -> Mapping[str, TakenSnapshot]:
        self._step((self.folder / tag).mkdir)
        return {table: TakenSnapshot([str(self.folder / tag)], 1) for table in tables}

    def delete(self, tables: Sequence[str], tag: str) -> None:
        assert list(tables) == [TABLE.full_name]
        self._step(lambda: (self.folder / tag).rmdir() if (self.folder / tag).exists() else None)

    def _step(self, work: Callable[[], None]) -> None:
        self._kill_if_due()
        if self.failures:
            self.failures -= 1
            raise WritetimeError("nodetool does not answer")
        work()
        self._kill_if_due()

    def _kill_if_due(self) -> None:
        self._moment += 1
        if self._moment - 1 == self.killed_at:
            raise Killed


def run(settings: Settings, node: Node) -> None:
    """Run an agent until the snapshot is done."""
    metrics = AgentMetrics(settings)
    with closing(Snapshots(settings, node, "node", metrics, lambda _: True, again_seconds=0.0)) as snapshots:
        while snapshots.status().get(TABLE.full_name, {}).get("status") != "done":
            snapshots.step([(TABLE, True)], cast("ChangePublisher", None), threading.Event())


@pytest.mark.parametrize("failures", range(4))
@pytest.mark.parametrize("killed_at", range(MOMENTS))
def test_no_snapshot_is_left(killed_at: int, failures: int, tmp_path: Path) -> None:
    settings = config.load(capture={"state_dir": str(tmp_path / "state"), "snapshot": "initial"})
    node = Node(tmp_path / "node")
    for folder in (settings.capture.state_dir, node.folder):
        folder.mkdir()
    node.killed_at = killed_at
    with pytest.raises(Killed):
        run(settings, node)
    node.failures = failures
    run(settings, node)
    assert list(node.folder.iterdir()) == []
