"""Files are merged in portions that are small in memory, however small their files are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.event_replay import replayed
from tests.support.lake_answers import view_rows
from tests.support.made import add, new_table, write
from writetime.files import merging
from writetime.lake import retention, state, views
from writetime.lake.table import LakeTable
from writetime.row_events import stream, trimming
from writetime.row_events.publish import PUBLISHED
from writetime.row_events.trimming import merge_events

pytestmark = pytest.mark.slow

# Files of some kilobytes each, with 100 KiB in memory; in row events, twice as much. 16 batches would be packed.
_FILES, _SIZE = 15, 100 << 10
_PORTION = 64 << 10


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each portion in memory, apart from the result of the portions before."""
    monkeypatch.setattr(merging, "PORTION_BYTES", _PORTION)
    found: list[int] = []
    merge, last_of_each = merging.merge, trimming._last_of_each

    def merged(tables: Sequence[pa.Table], *given: Any) -> pa.Table:
        found.append(sum(table.nbytes for table in tables[1:]))
        return merge(tables, *given)

    def reduced(events: pa.Table) -> pa.Table:
        found.append(events.nbytes - (2 * _SIZE if found else 0))
        return last_of_each(events)

    monkeypatch.setattr(merging, "merge", merged)
    monkeypatch.setattr(trimming, "_last_of_each", reduced)
    return found


def filled(folder: Path, *, by_step: bool) -> LakeTable:
    table = new_table(folder, buckets=1)
    for number in range(1, _FILES + 1):
        add(table, [write(n, 1, number, v=f"{number:03}" * (4 << 10)) for n in range(8)], number)
        if by_step:
            stream.extend(table)
            state.fold(table)
    return table


@pytest.mark.parametrize("step", ["fold", "compact", "history", "row events"])
def test_a_merge_holds_only_one_portion(step: str, tmp_path: Path, held: list[int]) -> None:
    table = filled(tmp_path, by_step=step != "fold")
    before = view_rows(views.virtual(table))
    held.clear()
    if step == "fold":
        assert state.fold(table) == _FILES
    elif step == "compact":
        assert state.compact(table) == 1
    elif step == "history":
        assert retention.trim_history(table, views.time_now()) == _FILES
    else:
        table.row_events.append([], PUBLISHED, _FILES)
        assert merge_events(table, views.time_now()) == 8 * (_FILES - 1)
        assert replayed(table) == before
    assert sum(held) > 8 * _PORTION
    assert max(held) <= 8 * _PORTION
    assert len(held) < _FILES
    assert view_rows(views.virtual(table)) == before
