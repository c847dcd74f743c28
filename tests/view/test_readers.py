"""Each engine reads the rows of the database from a view, after each refresh of many."""

import random
import time
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.generate import SEED
from tests.support.made import add, new_table, settings_at
from tests.support.view_readers import READERS, queried
from tests.view.written import COLUMNS, SCHEMA, SECOND, Row, Write, random_write, rows_after
from writetime.lake import buckets, retention, state, view_upkeep, views
from writetime.row_events.stream import extend
from writetime.row_events.stream_upkeep import keep_up
from writetime.view import refreshing
from writetime.view.refreshing import refresh

_BATCHES, _BATCHES_LONG = 25, 1000
_SPARK_EVERY = 5


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
        self._held: list[Write] = []
        self._batches = 0

    @property
    def address(self) -> str:
        return self.table.view.storage.address

    def step(self) -> None:
        """Let time pass, write a batch, some of it later than others, and refresh the view."""
        self.second += self.chooser.randint(0, 3)
        self._batches += 1
        first = self.second * SECOND + self._batches % 1000 * 1000
        new = [random_write(self.chooser, first + i) for i in range(self.chooser.randint(0, 40))]
        late = {i for i in range(len(new)) if self.chooser.random() < 0.1}
        arrived = [*(write for i, write in enumerate(new) if i not in late), *self._held]
        self._held = [new[i] for i in late]
        self.chooser.shuffle(arrived)
        self.writes += arrived
        add(self.table, [write.change for write in arrived], self._batches, SCHEMA)
        now = self.second * SECOND + 999_999
        with (
            patch.object(buckets, "FEW_ROWS", self.chooser.choice([0, 4096, 4096])),
            patch.object(views, "time_now", lambda: now),
            patch.object(refreshing, "time_now", lambda: now),
        ):
            if self.chooser.random() < 0.3:
                state.fold(self.table)
                state.compact(self.table)
            self.packed += refresh(self.settings, self.table).packed

    def wanted(self) -> list[Row]:
        return in_order(rows_after(self.writes, self.second))


@pytest.mark.timeout(3600)
def test_each_reader_after_each_refresh(tmp_path: Path, spark: SparkSession, is_long: bool) -> None:
    followed = Followed(tmp_path, SEED)
    earlier: tuple[DeltaTable, list[Row]] | None = None
    for number in range(_BATCHES_LONG if is_long else _BATCHES):
        followed.step()
        wanted = followed.wanted()
        for name, read in READERS.items():
            assert rows_of(read(followed.address)) == wanted, (name, number)
        if number % _SPARK_EVERY == 0:
            found = spark.read.format("delta").load(followed.address).select(*COLUMNS).collect()
            assert in_order([tuple(row) for row in found]) == wanted, number
        if number == 5:
            earlier = DeltaTable(followed.address), wanted
    assert followed.packed > 8
    assert earlier is not None
    assert_an_hour_is_kept(followed, *earlier)


def assert_an_hour_is_kept(followed: Followed, earlier: DeltaTable, wanted: list[Row]) -> None:
    """A reader that holds an earlier version goes on for an hour. Then its files go, and those of the present stay."""
    now = time.time()
    for hours, is_kept in ((0.9, True), (2, False)):
        with patch.object(view_upkeep.time, "time", lambda hours=hours: now + 3600 * hours):
            gone = [path for path in retention.vacuum(followed.table, 168) if "/view/" in path]
        assert bool(gone) != is_kept
        if is_kept:
            assert rows_of(queried(earlier)) == wanted
    for read in READERS.values():
        assert rows_of(read(followed.address)) == followed.wanted()


def test_the_stream_and_the_view_share_the_upkeep(tmp_path: Path) -> None:
    """The state is folded by what publishes row events, while the view is behind."""
    followed = Followed(tmp_path, SEED + 1)
    for _ in range(6):
        followed.step()
        extend(followed.table, followed.second * SECOND)
        keep_up(followed.settings, followed.table)
        assert rows_of(READERS["delta-rs"](followed.address)) == followed.wanted()
