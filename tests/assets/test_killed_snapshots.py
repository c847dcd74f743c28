"""A run that takes a snapshot is killed at each of its steps, and the next run follows."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance, build_asset_context, materialize

from writetime.core.config import Settings, TableEntry
from writetime.lake.followed_tables import FollowedTable
from writetime_dagster.assets import backfill
from writetime_dagster.resources import DatabaseResource

TABLE = FollowedTable("shop.orders", TableEntry(capture=False))
# The run takes a snapshot, and then deletes the previous one. It is killed before or after each of these.
MOMENTS = 4


class Killed(BaseException):
    """No code may handle this, like the kill of a process."""


class Node:
    """The snapshots of a node. The process of the run is killed at a moment, if one is given."""

    def __init__(self, folder: Path, instance: DagsterInstance) -> None:
        self._folder, self._instance = folder, instance
        self._moments: Iterator[int] = iter(())
        self._killed_at: int | None = None

    def take(self, _settings: Settings, table: str, tag: str) -> list[Path]:
        assert table == TABLE.name
        self._step((self._folder / tag).mkdir)
        return [self._folder / tag]

    def clear(self, _settings: Settings, table: str, tag: str) -> None:
        assert table == TABLE.name
        self._step(lambda: (self._folder / tag).rmdir() if (self._folder / tag).exists() else None)

    def run(self, killed_at: int | None = None) -> None:
        self._moments, self._killed_at = iter(range(100)), killed_at
        materialize([backfill.snapshots(TABLE)], instance=self._instance, resources={"database": DatabaseResource()})

    def left(self) -> list[str]:
        return sorted(map(str, self._folder.iterdir()))

    def recorded(self) -> list[str]:
        """The folders that a backfill reads."""
        return backfill._last_taken(build_asset_context(instance=self._instance), TABLE)

    def _step(self, work: Callable[[], None]) -> None:
        self._kill_if_due()
        work()
        self._kill_if_due()

    def _kill_if_due(self) -> None:
        if next(self._moments) == self._killed_at:
            raise Killed


@pytest.mark.parametrize("killed_at", range(MOMENTS))
def test_a_run_is_killed(killed_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backfill still finds the snapshot that is recorded, and the next run deletes all others."""
    with DagsterInstance.ephemeral() as instance:
        node = Node(tmp_path, instance)
        monkeypatch.setattr(backfill, "take_snapshot", node.take)
        monkeypatch.setattr(backfill, "clear_snapshot", node.clear)
        node.run()
        first = node.recorded()
        with pytest.raises(Killed):
            node.run(killed_at)
        assert set(node.recorded()) <= set(node.left())
        node.run()
        assert node.left() == node.recorded() != first
