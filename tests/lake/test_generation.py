"""The changes that count after a truncation, in any order of changes and records of nodes."""

import random
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.lake.answers import view_rows
from tests.lake.made import add, new_table, write
from tests.row_events.replay import Consumer, in_order
from tests.storage.generate import SEED
from writetime.core.errors import WritetimeError
from writetime.lake import generation, retention, state, views
from writetime.lake.generation import Start, Truncation, renew
from writetime.lake.horizon import raise_snapshot, register_source, require_newer, retire_source
from writetime.lake.state import generation_of
from writetime.lake.table import LakeTable
from writetime.row_events import stream
from writetime.scylla_cdc.log import first_uuid

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
    return sorted(row["id"] for row in view_rows(views.virtual(table)))


@pytest.mark.parametrize("order", range(6))
def test_each_node_forgets_its_earlier_log(tmp_path: Path, order: int) -> None:
    """The rows that count do not depend on when the lake folded, and learned of the truncation of each node."""
    r = random.Random(SEED + order)
    table = new_table(tmp_path)
    truncated = {node: Truncation(1_000, 50, r.randrange(100)) for node in NODES}
    starts = {node: Start(truncation=truncation, snapshot_at=2_000) for node, truncation in truncated.items()}
    wanted, number, id_ = set(), 0, 0
    steps = ["changes"] * 6 + ["fold"] * 2 + ["events"] * 2 + ["learn"] * 3
    r.shuffle(steps)
    learned: dict[str, Start] = {}
    for step in [*steps, "learn", "learn"]:
        if step == "fold":
            state.fold(table)
        elif step == "events":
            stream.extend(table)
        elif step == "learn":
            learned |= dict(r.sample(sorted(starts.items()), 1 if len(learned) == 0 else 2))
            renew(table, learned)
        else:
            rows = []
            for _ in range(5):
                id_ += 1
                node = r.choice(NODES)
                place = r.choice([(49, 99), (50, r.randrange(100)), (51, 0)])
                found = r.choice([logged(node, *place), from_snapshot(node, r.choice([900, 1_500, 2_000, 2_500]))])
                is_logged = found["origin"]["source"] == "commitlog"
                counts = (
                    place >= (50, truncated[node].offset)
                    if is_logged
                    else found["origin"]["captured_at"].microsecond >= 2_000
                )
                wanted |= {id_} if counts else set()
                # What came after the lake learned of it is left out by landing.
                if counts or node not in learned:
                    rows.append(write(id_, 1, r.choice([5, LATE]), v="x") | found)
            number += 1
            add(table, rows, number)
    assert keys(table) == sorted(wanted)
    state.fold(table)
    assert keys(table) == sorted(wanted)
    stream.extend(table)
    consumer = Consumer()
    consumer.follow(table)
    assert in_order(consumer.rows) == view_rows(views.virtual(table))
    assert not renew(table, starts)


def test_a_renewal_that_was_killed_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    add(table, [write(1, 1, 5, v="old") | logged("a", 1, 1), write(2, 1, 5, v="new") | logged("a", 3, 1)], 1)
    state.fold(table)
    stream.extend(table)
    starts = {"a": Start(truncation=Truncation(10, 2, 0))}

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(generation, "rebuild", die)
    with pytest.raises(RuntimeError, match="killed"):
        renew(table, starts)
    # Neither folds into the state of before, nor tells rows from it.
    assert state.fold(table) == 0
    assert stream.extend(table) == 0
    monkeypatch.undo()
    assert not renew(table, starts)
    assert keys(table) == [2]
    assert generation_of(table.state.load()) == generation_of(table.changes.load()) == 1


def test_nothing_is_removed_that_still_counts(tmp_path: Path) -> None:
    """Of a backfill, what was read before the truncation goes, unless the lake has a later snapshot; a truncation that
    concerns nothing begins no generation."""
    table = new_table(tmp_path)
    add(table, [write(1, 1, 5, v="x") | logged("a", 9, 1), write(2, 1, 5, v="x") | from_snapshot(None, 5_000)], 1)
    raise_snapshot(table, 4_000)
    assert renew(table, {"a": Start(truncation=Truncation(3_000, 8, 0))})
    assert keys(table) == [1, 2]
    assert generation_of(table.changes.load()) == 0
    assert renew(table, {"a": Start(truncation=Truncation(6_000, 9, 0))})
    assert keys(table) == [1]
    assert generation_of(table.changes.load()) == 1


def test_merged_history_of_several_nodes_is_refused(tmp_path: Path) -> None:
    """Merged changes have no origin. With one node they are all from before."""
    for nodes in (("a",), NODES):
        table = new_table(tmp_path / "".join(nodes))
        for node in nodes:
            register_source(table, node)
        for number in range(4):
            add(table, rows_of(number), number)
        state.fold(table)
        assert retention.trim_history(table, views.time_now())
        starts = {"a": Start(truncation=Truncation(1, 9, 0))}
        if len(nodes) == 1:
            assert renew(table, starts)
            assert keys(table) == []
        else:
            with pytest.raises(WritetimeError, match="were merged since"):
                renew(table, starts)


def rows_of(number: int) -> Iterable[dict[str, Any]]:
    return [write(id_, number, 5, v="x") | logged("a", 1, number) for id_ in range(20)]


def test_rows_of_cdc_logs_by_their_times(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    times = (0, 1_700_000_000_000_000, 1_800_000_000_000_000)
    names = [f"0x01/{first_uuid(at)}" for at in times]
    add(table, [write(i, 1, 5, v="x") | origin("scylla_cdc", None, name, 1, 5) for i, name in enumerate(names)], 1)
    for at, wanted in ((times[1], [1, 2]), (times[1] + 1, [2])):
        assert renew(table, {"shop.items_scylla_cdc_log": Start(truncation=Truncation(at), of_log=True)})
        assert keys(table) == wanted


def test_a_snapshot_from_before_a_truncation_is_refused(tmp_path: Path) -> None:
    """Its rows would come back. One that was taken later is not refused, whatever truncation a retired source had."""
    table = new_table(tmp_path)
    for source in NODES:
        register_source(table, source)
    renew(table, {"a": Start(truncation=Truncation(3_000, 1, 0)), "b": Start(truncation=Truncation(9_000, 1, 0))})
    retire_source(table, "b")
    for taken_at in (2_999, 3_000):
        with pytest.raises(
            WritetimeError, match=r"shop.items was truncated at 1970-01-01T00:00:00.003.*take a new one"
        ):
            require_newer(table, table.changes.load(), taken_at)
    require_newer(table, table.changes.load(), 3_001)
