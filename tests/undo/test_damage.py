"""Damaged cells of changes made by hand: what the random histories rarely have."""

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.made import SCHEMA, add, batch, new_table, settings_at, write
from writetime.changes.starts import Start, Truncation
from writetime.core.errors import WritetimeError
from writetime.lake.generation import renew
from writetime.lake.horizon import raise_complete_snapshot
from writetime.schema.cql import parse_table
from writetime.schema.table import TableSchema
from writetime.undo import applying
from writetime.undo.damage import Chosen, Interval, find_damage
from writetime.undo.plan import ATTEMPTS, folder_of, make_plan, plan_ids

_BAD = Interval(1_000, 2_000)
_NOW = 1_000_000


def damage(rows: list[dict[str, Any]], schema: TableSchema = SCHEMA) -> list[tuple[Any, ...]]:
    """Kind, part, column, element, what was before and what is now, of each damaged cell."""
    changes = pa.Table.from_batches([batch(rows, schema)])
    found = find_damage([changes], schema, _BAD, _NOW, Chosen())
    return [tuple(cell[name] for name in found.schema.names[:6]) for cell in found.to_pylist()]


def expired(id_: int, write_time: int) -> dict[str, Any]:
    """A marker with a TTL that has ended."""
    return write(id_, 0, write_time) | {"marker": {"write_time": write_time, "ttl": 10, "expiry": 500}}


def test_a_new_row_with_a_later_marker_that_has_expired() -> None:
    found = damage([write(1, 0, 1_500, v="bad"), expired(1, 3_000)])
    assert ("added", "row", None, None, None, "true") in found


def test_a_row_that_the_interval_wrote_again() -> None:
    same = {"value": "good", "write_time": 1_500, "tombstone": False}
    assert damage([write(1, 0, 10, v="good"), write(1, 0, 1_500) | {"v": same}]) == []


DECIMALS = parse_table("CREATE TABLE shop.items (id int, n int, s set<decimal>, PRIMARY KEY (id, n))")


def element(text: str, write_time: int) -> dict[str, Any]:
    return {"path": text, "write_time": write_time, "tombstone": False}


def test_elements_that_are_equal_in_the_database() -> None:
    good = write(1, 0, 10) | {"s": {"elements": [element("1.50", 10)]}}
    bad = write(1, 0, 10) | {"s": {"elements": [element("1.5", 1_500)]}}
    assert damage([good, bad], DECIMALS) == [("overwritten", "cell", "s", '"1.50"', "true", "true")]


def test_no_two_runs_have_the_same_attempt(tmp_path: Path) -> None:
    table = new_table(tmp_path / "lake")
    add(table, [write(1, 0, 1_500, v="bad")], 0)
    raise_complete_snapshot(table, 10**9)
    plan = make_plan(table, _BAD)
    folder = folder_of(table, plan.id)
    assert [applying._begin(folder, plan) for _ in range(ATTEMPTS)] == list(range(1, ATTEMPTS + 1))
    with pytest.raises(WritetimeError, match="was begun 100 times: make a new plan"):
        applying._begin(folder, plan)


def test_a_damaged_record_of_the_progress_is_left_out(tmp_path: Path) -> None:
    table = new_table(tmp_path / "lake")
    with table.storage.writing("progress.json") as file:
        file.write(b'{"cells')
    assert applying._progress(table.storage) == {}


def test_a_table_that_was_truncated_since(tmp_path: Path) -> None:
    table = new_table(tmp_path / "lake")
    add(table, [write(1, 0, 1_500, v="bad")], 0)
    raise_complete_snapshot(table, 10**9)
    plan = make_plan(table, _BAD)
    assert renew(table, {"a": Start(truncation=Truncation(10**9, 1, 0))})
    # Nothing listens at the address of these settings: it is refused before.
    with pytest.raises(WritetimeError, match="was truncated or created again since the plan"):
        applying.apply_plan(settings_at(tmp_path / "lake"), table, plan)


def test_a_wrong_clock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By it, cells with a TTL would be left out, or deleted as expired."""
    table = new_table(tmp_path / "lake")
    add(table, [write(1, 0, 1_500, v="bad")], 0)
    raise_complete_snapshot(table, 10**9)
    plan = make_plan(table, _BAD)
    answer = SimpleNamespace(at=(time.time() - 3600) * 1000)
    session = SimpleNamespace(execute=lambda *_: SimpleNamespace(one=lambda: answer))
    monkeypatch.setattr(applying, "connect", lambda _: nullcontext(session))
    with pytest.raises(WritetimeError, match=r"the clocks of this machine and of the database differ by 36\d\d s: set"):
        applying.apply_plan(settings_at(tmp_path / "lake"), table, plan)


def test_plans_that_are_too_old_are_deleted(tmp_path: Path) -> None:
    table = new_table(tmp_path / "lake")
    add(table, [write(1, 0, 1_500, v="bad")], 0)
    raise_complete_snapshot(table, 10**9)
    made = Path(folder_of(table, make_plan(table, _BAD).id).address)
    made.rename(made.with_name("17"))
    assert plan_ids(table) == ["17"]
    first = make_plan(table, _BAD).id
    second = make_plan(table, _BAD).id
    assert plan_ids(table) == [first, second]


def test_a_condition_is_refused_without_damage(tmp_path: Path) -> None:
    table = new_table(tmp_path / "lake")
    raise_complete_snapshot(table, 10**9)
    with pytest.raises(WritetimeError, match="--where 'nothing = 1'"):
        make_plan(table, _BAD, where="nothing = 1")
