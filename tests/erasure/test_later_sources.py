"""What was erased does not come back from messages, SSTables, or programs that began before the erasure.

Oracle: a search of all files by other programs, and the rows from before.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pyarrow as pa
import pytest

from tests.erasure.people import SCHEMA, Lake, all_values, people
from tests.support.made import batch
from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import ERASED, Conflict
from writetime.lake import packing, retention, state, views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.changes import ChangeWriter
from writetime.lake.state import erased_of
from writetime.restore.to_folder import restore
from writetime.row_events.stream import extend
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.slow
Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
STEPS: dict[str, Callable[[Lake, Run], object]] = {
    "fold": lambda lake, run: state.fold(lake.table, run),
    "compact": lambda lake, run: state.compact(lake.table, run),
    "drop": lambda lake, run: state.drop_tombstones(lake.table, 1_500, run),
    "rebuild": lambda lake, run: state.rebuild(lake.table, run),
    "trim": lambda lake, run: retention.trim_history(lake.table, views.time_now(), run),
    "pack": lambda lake, run: packing.pack_folded(lake.table, run),
    "events": lambda lake, run: extend(lake.table, None, run),
    "events again": lambda lake, run: extend(lake.table, None, run, rebuild=True),
    "view": lambda lake, run: refresh(lake.settings, lake.table, run),
    "whole view": lambda lake, run: refresh(lake.settings, lake.table, run, whole=True),
}


def test_a_backfill_of_old_sstables(tmp_path: Path) -> None:
    everyone = people(6)
    lake = Lake(tmp_path)
    lake.fill(everyone, everyone[:2])
    restore(lake.table, str(tmp_path / "old"), 999)
    before = lake.shown()
    lake.erase(everyone[:2])
    snapshot = find_snapshots([str(path) for path in (tmp_path / "old").rglob("*-Data.db")], SCHEMA)
    added = dict(backfill(lake.table, snapshot))
    assert sum(added.values()) > 0
    state.fold(lake.table)
    lake.follow()
    assert lake.shown() == before
    for path in (tmp_path / "old").rglob("*"):
        if path.is_file():
            path.unlink()
    assert lake.left_of(everyone[:2]) == {}


def test_messages_from_before_and_after(tmp_path: Path) -> None:
    """Landing decodes messages in batches, and leaves out what is not newer than the deletion."""
    gone, other = people(2)
    lake = Lake(tmp_path)
    lake.fill([gone, other], [gone])
    lake.erase([gone])
    again = [gone.write(0, 1), gone.static(6, 2), gone.deletion(), other.write(0, 1), gone.write(1, 1_001)]
    writer = ChangeWriter.of(lake.table, lake.table.schema(), lake.table.changes.load())
    left = [change for some in writer.left([batch(again, SCHEMA)]) for change in some.to_pylist()]
    assert [(change["person"], change["marker"]) for change in left] == [
        (other.name, {"write_time": 1, "ttl": None, "expiry": None}),
        (gone.name, {"write_time": 1_001, "ttl": None, "expiry": None}),
    ]


def test_a_landing_that_began_before(tmp_path: Path) -> None:
    gone, other = people(2)
    lake = Lake(tmp_path)
    lake.fill([gone, other], [gone])
    now = lake.table.changes.load()
    files = ChangeWriter.of(lake.table, SCHEMA, now).write([batch([gone.write(0, 1)], SCHEMA)])
    lake.erase([gone])
    with pytest.raises(Conflict):
        lake.table.changes.append(files, "topic", 1, given={ERASED: erased_of(now)})
    lake.erase([gone])
    assert lake.left_of([gone]) == {}


def test_a_lost_secret_stops_what_adds_changes(tmp_path: Path) -> None:
    gone, other = people(2)
    lake = Lake(tmp_path)
    lake.fill([gone, other], [gone])
    lake.erase([gone])
    (tmp_path / "lake" / "erasures" / "secret").unlink()
    with pytest.raises(WritetimeError, match="erasures/secret is missing"):
        ChangeWriter.of(lake.table, SCHEMA, lake.table.changes.load())
    with pytest.raises(WritetimeError, match="erasures/secret is missing"):
        lake.erase([other])


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_began_before(tmp_path: Path, step: str) -> None:
    """Other programs read the files before the erasure, and commit after it."""
    everyone = people(6)
    lake = Lake(tmp_path, buckets=1, keep_history_days=0.0)
    lake.fill(everyone, everyone[:2])
    # So many that each step has work.
    for number in range(16):
        lake.add([person.write(7, 900 + number) for person in everyone])
        if number % 4 == 3:
            state.fold(lake.table)
    lake.follow()
    if step in {"fold", "events", "view"}:
        lake.add([person.write(7, 990) for person in everyone])
    other = Lake(tmp_path, buckets=1)
    is_erased = False

    def overtaken(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        nonlocal is_erased
        done = [function(task) for task in tasks]
        if done and not is_erased:
            other.erase(everyone[:2])
            is_erased = True
        return iter(done)

    with suppress(Conflict):
        STEPS[step](lake, overtaken)
    assert is_erased
    lake.follow()
    state.fold(lake.table)
    # Files that the step could not commit.
    lake.erase(everyone[:2])
    assert lake.left_of(everyone[:2]) == {}
    assert lake.left_of(everyone[2:]).keys() == all_values(everyone[2:])
    rows = pa.concat_tables(views.virtual(lake.table))
    assert set(rows["person"].to_pylist()) == {person.name for person in everyone[2:]}
    assert len(lake.shown()) == len(rows)


def test_a_copy_from_before_is_erased_again(tmp_path: Path) -> None:
    """A folder of the table that is restored has the rows, and landing leaves out their deletion."""
    everyone = people(5)
    lake = Lake(tmp_path)
    lake.fill(everyone, [])
    copytree(tmp_path / "lake" / "shop.people", tmp_path / "copy")
    lake.add([person.deletion() for person in everyone[:2]])
    lake.erase(everyone[:2])
    rmtree(tmp_path / "lake" / "shop.people")
    (tmp_path / "copy").rename(tmp_path / "lake" / "shop.people")
    restored = Lake(tmp_path)
    writer = ChangeWriter.of(restored.table, SCHEMA, restored.table.changes.load())
    assert not [*writer.left([batch([everyone[0].deletion()], SCHEMA)])][-1].num_rows
    restored.erase(everyone[:2])
    assert restored.left_of(everyone[:2]) == {}
    assert restored.left_of(everyone[2:]).keys() == all_values(everyone[2:])
    rows = pa.concat_tables(views.virtual(restored.table))
    assert set(rows["person"].to_pylist()) == {person.name for person in everyone[2:]}
    assert len(restored.shown()) == len(rows)
