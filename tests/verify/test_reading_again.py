"""The rows of the lake that are read again; no server is needed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.decoded_reads import decoded_reads
from tests.support.made import SCHEMA, add, batch, new_table, write
from writetime.core.arrow import pc
from writetime.delta import buckets
from writetime.delta.buckets import ALL
from writetime.lake import state
from writetime.lake.horizon import raise_complete_snapshot
from writetime.lake.table import LakeTable
from writetime.lake.views import bucket_views, time_now
from writetime.merge import merge
from writetime.row_events.compare import OrderedRows
from writetime.row_events.events import placed_rows
from writetime.verify import comparison
from writetime.verify.comparison import _lake_state
from writetime.verify.lag import NO_TIME


@pytest.mark.parametrize("count", [4, 32])
def test_a_token_is_read_from_the_files_of_its_bucket(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many buckets the table has."""
    table = new_table(tmp_path, buckets=count)
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "FEW_ROWS", 0)
        add(table, [write(i, 1, 1, v="a") for i in range(200)], 1)
        state.fold(table)
    for number in (2, 3):
        add(table, [write(i, 1, number, w=number) for i in range(50)], number)
    tokens = sorted(write(i, 1, 1)["token"] for i in range(40, 80))
    with decoded_reads("between") as found:
        rows, _, _ = _lake_state(bucket_views(table), table.schema(), [*tokens, tokens[-1] + 1])
    read = [file.bucket for file, _ in found]
    assert rows["token"].to_pylist() == tokens
    assert pc.sum(rows["w"].combine_chunks().field("value")).as_py() == 30
    # A level, and the two files of all buckets.
    assert len([bucket for bucket in read if bucket != ALL]) <= len(tokens) + 1
    assert read.count(ALL) == 2 * (len(tokens) + 1)


class Database:
    """A database with one row. While it is read for the first time, the lake gets a cell that the row has had since.
    Before the second read, the cell is deleted, which the lake does not have yet.
    """

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self.reads = 0

    def timed_rows(self, _tokens: list[int]) -> tuple[OrderedRows, np.ndarray]:
        self.reads += 1
        rows = placed_rows(merge([batch([write(1, 1, time_now(), w=self.reads)])], SCHEMA), SCHEMA, time_now())
        if self.reads == 1:
            add(self._table, [write(1, 1, time_now(), v="held")], 2)
        else:
            # The lake has all writes for a while.
            raise_complete_snapshot(self._table, time_now() + 60_000_000)
        return rows, np.array([[NO_TIME, time_now()]])


def test_a_cell_that_was_written_during_the_first_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path)
    add(table, [write(1, 1, 1, w=0)], 1)
    database: Any = Database(table)
    monkeypatch.setattr(comparison, "time", SimpleNamespace(monotonic=lambda: database.reads, sleep=lambda _: None))
    token = write(1, 1, 1)["token"]
    (found,) = comparison._settle(table, SCHEMA, database, {token}, 1.5, lag_from=time_now())
    assert database.reads == 2
    assert (found.lake or {})["v"] == "held"
    assert found.lagging
