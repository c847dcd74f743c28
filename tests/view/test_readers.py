"""Each engine reads the rows that CQL would answer from a view, after each refresh of many.

Oracle: a simple model of CQL (`tests.support.written`). `tests/iceberg/test_readers.py` compares with the database.
"""

import os
import random
import time
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.examples import is_long_run
from tests.support.generate import SEED
from tests.support.made import add, new_table, settings_at
from tests.support.view_clock import rows_at, upkeep_at
from tests.support.view_readers import READERS, queried
from tests.support.written import COLUMNS, SCHEMA, SECOND, Row, Write, random_write, rows_after
from writetime.delta import buckets
from writetime.lake import retention, state
from writetime.lake.projection import ROW_EVENTS
from writetime.row_events.stream import extend
from writetime.view.refreshing import refresh
from writetime.view.upkeep import keep_up

pytestmark = pytest.mark.long

_BATCHES, _BATCHES_LONG = 14, 1000
_SPARK_EVERY = 5 if is_long_run() else 7
# The upkeep of the view has its own clock: seconds per batch. It trims every second batch.
_PACE = 300 if is_long_run() else 600
_HOUR = 3600 // _PACE


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: tuple(-1 if value is None else value for value in row[:2]))


def rows_of(found: pa.Table) -> list[Row]:
    return in_order(list(zip(*(found[name].to_pylist() for name in COLUMNS), strict=True)))


class Followed:
    """A table that is written to at random, and whose view is refreshed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.settings = settings_at(folder, buckets=2)
        self.table = new_table(folder, SCHEMA, buckets=2)
        self.chooser = random.Random(seed)
        self.writes: list[Write] = []
        self.second = 1_000
        self.packed = 0
        self.batches = 0
        self._held: list[Write] = []
        self._begun = time.time()

    @property
    def address(self) -> str:
        return self.table.view.storage.address

    def clock(self) -> AbstractContextManager[None]:
        """Let the log and the upkeep of the view have their own time."""
        return upkeep_at(self._begun + _PACE * self.batches)

    def step(self) -> None:
        """Let time pass, write a batch, some of it later than others, and refresh the view."""
        self.second += self.chooser.randint(0, 3)
        self.batches += 1
        first = self.second * SECOND + self.batches % 1000 * 1000
        new = [random_write(self.chooser, first + i) for i in range(self.chooser.randint(0, 40))]
        late = {i for i in range(len(new)) if self.chooser.random() < 0.1}
        arrived = [*(write for i, write in enumerate(new) if i not in late), *self._held]
        self._held = [new[i] for i in late]
        self.chooser.shuffle(arrived)
        self.writes += arrived
        add(self.table, [write.change for write in arrived], self.batches, SCHEMA)
        now = self.second * SECOND + 999_999
        with (
            self.clock(),
            patch.object(buckets, "FEW_ROWS", self.chooser.choice([0, 4096, 4096])),
            rows_at(now),
        ):
            if self.chooser.random() < 0.3:
                state.fold(self.table)
                state.compact(self.table)
            self.packed += refresh(self.settings, self.table).packed

    def wanted(self) -> list[Row]:
        return in_order(rows_after(self.writes, self.second))


def test_each_reader_after_each_refresh(tmp_path: Path, spark: SparkSession, is_long: bool) -> None:
    followed = Followed(tmp_path, SEED)
    earlier, at_first = DeltaTable(followed.address), followed.wanted()
    for number in range(_BATCHES_LONG if is_long else _BATCHES):
        followed.step()
        wanted = followed.wanted()
        for name, read in READERS.items():
            assert rows_of(read(followed.address)) == wanted, (name, number)
        if number % _SPARK_EVERY == 0:
            found = spark.read.format("delta").load(followed.address).select(*COLUMNS).collect()
            assert in_order([tuple(row) for row in found]) == wanted, number
        if number == 5:
            earlier, at_first = DeltaTable(followed.address), wanted
        if number == 5 + _HOUR - 1:
            assert rows_of(queried(earlier)) == at_first
    assert followed.packed > 8
    # Refreshes have deleted the files that were replaced over an hour ago.
    assert not all(map(os.path.exists, earlier.file_uris()))
    assert_all_is_needed(followed)


def assert_all_is_needed(followed: Followed) -> None:
    """Vacuum an hour later: only the files of the current version stay."""
    followed.batches += _HOUR + 1
    with followed.clock():
        retention.vacuum(followed.table, 168)
    live = followed.table.view.load().by_path
    found = {path.relative_to(followed.address) for path in Path(followed.address).glob("token_bucket=*/*.parquet")}
    assert found == set(map(Path, live))
    for read in READERS.values():
        assert rows_of(read(followed.address)) == followed.wanted()


def test_the_stream_and_the_view_share_the_upkeep(tmp_path: Path) -> None:
    """The publisher of row events folds the state, while the view is behind."""
    followed = Followed(tmp_path, SEED + 1)
    for number in range(6):
        followed.step()
        extend(followed.table, followed.second * SECOND)
        keep_up(followed.settings, followed.table, number, [ROW_EVENTS])
        assert rows_of(READERS["delta-rs"](followed.address)) == followed.wanted()
