"""The changes that count after a truncation, in any order of changes and records of nodes.

Oracle: a model in the test: the writes that each node still has after its truncations.
"""

import itertools
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_replay import Consumer, in_order
from tests.support.generate import SEED
from tests.support.lake_answers import view_rows
from tests.support.made import add, new_table, write
from writetime.changes.starts import Start, Truncation
from writetime.core.errors import WritetimeError
from writetime.delta import buckets, commits
from writetime.lake import generation, packing, retention, state, views
from writetime.lake.generation import renew
from writetime.lake.horizon import (
    raise_complete_snapshot,
    raise_snapshot,
    register_source,
    require_newer,
    retire_source,
)
from writetime.lake.state import generation_of
from writetime.lake.table import LakeTable
from writetime.row_events import stream
from writetime.scylla_cdc.log import first_uuid

pytestmark = pytest.mark.slow

NODES = ("a", "b")
LATE = 4_000_000_000_000_000


def origin(source: str, node: str | None, file: str, offset: int | None, captured_at: int) -> dict[str, Any]:
    at = datetime.fromtimestamp(captured_at / 1e6, UTC)
    return {"origin": {"source": source, "node": node, "file": file, "offset": offset, "captured_at": at}}


def logged(node: str, segment: int, offset: int) -> dict[str, Any]:
    return origin("commitlog", node, f"/cdc_raw/CommitLog-7-{segment}.log", offset, segment)


def from_snapshot(node: str | None, captured_at: int) -> dict[str, Any]:
    return origin("sstable", node, "/data/nb-1-big-Data.db", None, captured_at)


def keys(table: LakeTable) -> list[int]:
    return keys_at(table, None)


def keys_at(table: LakeTable, instant: int | None) -> list[int]:
    return sorted(row["id"] for row in view_rows(views.virtual(table, instant)))


class Nodes:
    """Writes to a table of the lake, from before and after the truncation of each node."""

    def __init__(self, table: LakeTable, chooser: random.Random) -> None:
        self.table = table
        self.chooser = chooser
        truncated = {node: Truncation(1_000, 50, chooser.randrange(100)) for node in NODES}
        self.starts = {node: Start(truncation=found, snapshot_at=2_000) for node, found in truncated.items()}
        self.learned: dict[str, Start] = {}
        self.wanted: set[int] = set()
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)

    def learn(self) -> None:
        """Let the lake learn of the truncation of one node, and later of that of both."""
        self.learned |= dict(self.chooser.sample(sorted(self.starts.items()), 1 if len(self.learned) == 0 else 2))
        renew(self.table, self.learned)

    def add(self) -> None:
        """Add five changes that were logged, or that a snapshot has."""
        rows = []
        for id_ in itertools.islice(self._ids, 5):
            node = self.chooser.choice(NODES)
            found, counts = self._found(node)
            if counts:
                self.wanted.add(id_)
            # Landing leaves out the changes that arrived after the lake had recorded it.
            if counts or node not in self.learned:
                rows.append(write(id_, 1, self.chooser.choice([5, LATE]), v="x") | found)
        add(self.table, rows, next(self._numbers))

    def _found(self, node: str) -> tuple[dict[str, Any], bool]:
        """Where a change was found, and whether it counts."""
        if self.chooser.random() < 0.5:
            place = self.chooser.choice([(49, 99), (50, self.chooser.randrange(100)), (51, 0)])
            truncation = self.starts[node].truncation
            assert truncation is not None
            return logged(node, *place), place >= (50, truncation.offset)
        taken_at = self.chooser.choice([900, 1_500, 2_000, 2_500])
        return from_snapshot(node, taken_at), taken_at >= 2_000


OTHERS = pytest.mark.long_only("two orders are enough for each run")


@pytest.mark.parametrize("order", [0, 1, *(pytest.param(order, marks=OTHERS) for order in range(2, 6))])
def test_each_node_forgets_its_earlier_log(tmp_path: Path, order: int) -> None:
    """The rows that count do not depend on when the lake folded, and learned of the truncation of each node."""
    table = new_table(tmp_path)
    nodes = Nodes(table, random.Random(SEED + order))
    act: dict[str, Callable[[], object]] = {
        "add": nodes.add,
        "fold": lambda: state.fold(table),
        "events": lambda: stream.extend(table),
        "learn": nodes.learn,
    }
    steps = ["add"] * 6 + ["fold"] * 2 + ["events"] * 2 + ["learn"] * 3
    nodes.chooser.shuffle(steps)
    for step in [*steps, "learn", "learn"]:
        act[step]()
    assert keys(table) == sorted(nodes.wanted)
    state.fold(table)
    assert keys(table) == sorted(nodes.wanted)
    stream.extend(table)
    consumer = Consumer()
    consumer.follow(table)
    assert in_order(consumer.rows) == view_rows(views.virtual(table))
    assert not renew(table, nodes.starts)


def killed_at(monkeypatch: pytest.MonkeyPatch, of: object, step: str, work: Callable[[], object]) -> None:
    """Work, and be killed before a step."""

    def die(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(of, step, die)
        with pytest.raises(RuntimeError, match="killed"):
            work()


def test_a_renewal_that_was_killed_shows_no_earlier_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    add(table, [write(1, 1, 5, v="old") | logged("a", 1, 1)], 1)
    starts = {"a": Start(truncation=Truncation(10_000_000, 2, 0))}
    killed_at(monkeypatch, commits, "write_commit", lambda: renew(table, starts))
    assert keys_at(table, 9_000_000) == [1]
    assert renew(table, starts)
    with pytest.raises(WritetimeError, match="the lake can show only"):
        keys_at(table, 9_000_000)
    assert keys_at(table, 10_000_000) == keys(table) == []


def test_a_renewal_that_was_killed_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    add(table, [write(1, 1, 5, v="old") | logged("a", 1, 1), write(2, 1, 5, v="new") | logged("a", 3, 1)], 1)
    state.fold(table)
    stream.extend(table)
    starts = {"a": Start(truncation=Truncation(10, 2, 0))}

    killed_at(monkeypatch, generation, "rebuild", lambda: renew(table, starts))
    # Neither folds into the earlier state, nor takes rows from it.
    assert state.fold(table) == 0
    assert stream.extend(table) == 0
    assert not renew(table, starts)
    assert keys(table) == [2]
    assert generation_of(table.state.load()) == generation_of(table.changes.load()) == 1


def test_nothing_is_removed_that_still_counts(tmp_path: Path) -> None:
    """Of a backfill, what was read before the truncation goes, unless all its snapshots are later; a truncation that
    concerns nothing begins no generation."""
    table = new_table(tmp_path)
    add(table, [write(1, 1, 5, v="x") | logged("a", 9, 1), write(2, 1, 5, v="x") | from_snapshot(None, 8_000)], 1)
    raise_complete_snapshot(table, 4_000)
    raise_snapshot(table, 7_000)
    assert renew(table, {"a": Start(truncation=Truncation(3_000, 8, 0))})
    assert keys(table) == [1, 2]
    assert generation_of(table.changes.load()) == 0
    assert renew(table, {"a": Start(truncation=Truncation(6_000, 9, 0))})
    assert keys(table) == [1]
    assert generation_of(table.changes.load()) == 1


@pytest.mark.parametrize("few", [4096, 2])
def test_merged_history_of_several_nodes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """Merged changes have no origin. With one node they are all from before. Packing leaves them as they are."""
    monkeypatch.setattr(buckets, "FEW_ROWS", few)
    for nodes in (("a",), NODES):
        table = new_table(tmp_path / "".join(nodes))
        for node in nodes:
            register_source(table, node)
        for number in range(4):
            add(table, rows_of(number), number)
        state.fold(table)
        assert retention.trim_history(table, views.time_now())
        for number in range(4, 20):
            add(table, rows_of(number), number)
        state.fold(table)
        assert packing.pack_batches(table, table.changes.load()) or packing.pack_folded(table)
        starts = {"a": Start(truncation=Truncation(1, 99, 0))}
        if len(nodes) == 1:
            assert renew(table, starts)
            assert keys(table) == []
        else:
            with pytest.raises(WritetimeError, match="were merged since"):
                renew(table, starts)


def rows_of(number: int) -> Iterable[dict[str, Any]]:
    return [write(id_, number, 5, v="x") | logged("a", 1, number) for id_ in range(8)]


def test_rows_of_cdc_logs_by_their_times(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    times = (0, 1_700_000_000_000_000, 1_800_000_000_000_000)
    names = [f"0x01/{first_uuid(at)}" for at in times]
    add(table, [write(i, 1, 5, v="x") | origin("scylla_cdc", None, name, 1, 5) for i, name in enumerate(names)], 1)
    for at, wanted in ((times[1], [1, 2]), (times[1] + 1, [2])):
        assert renew(table, {"shop.items_scylla_cdc_log": Start(truncation=Truncation(at), of_log=True)})
        assert keys(table) == wanted


def test_published_snapshots_of_tables_with_cdc_logs_by_their_times(tmp_path: Path) -> None:
    """Only for the log's agent: the changes of a backfill count by the time of its snapshots."""
    table, log = new_table(tmp_path), "shop.items_scylla_cdc_log"
    rows = [from_snapshot(log, 8_000), from_snapshot(log, 9_000), from_snapshot(log, 9_001), from_snapshot(None, 8_000)]
    add(table, [write(i, 1, 5, v="x") | found for i, found in enumerate(rows)], 1)
    raise_complete_snapshot(table, 7_000)
    assert renew(table, {log: Start(truncation=Truncation(9_000), snapshot_at=9_001, of_log=True)})
    assert keys(table) == [2]


def test_a_snapshot_from_before_a_truncation_is_refused(tmp_path: Path) -> None:
    """Its rows would reappear. A later snapshot is not refused, whatever truncation a retired source had."""
    table = new_table(tmp_path)
    for source in NODES:
        register_source(table, source)
    renew(table, {"a": Start(truncation=Truncation(3_000, 1, 0)), "b": Start(truncation=Truncation(9_000, 1, 0))})
    retire_source(table, "b")
    for taken_at in (2_999, 3_000):
        with pytest.raises(
            WritetimeError, match=r"shop.items was truncated at 1970-01-01T00:00:00.003.*take a new one"
        ):
            require_newer(table, table.changes.load(), 4_000, 4_000, taken_at)
    require_newer(table, table.changes.load(), 4_000, 4_000, 3_001)
