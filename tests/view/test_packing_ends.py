"""Each file of a view is packed only a few times, for any compression of its rows and any number of refreshes."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.lake_answers import unordered
from tests.support.made import add, new_table, settings_at, write
from tests.support.view_readers import by_query
from writetime.delta import buckets
from writetime.lake import packing, views
from writetime.lake.table import LakeTable
from writetime.view import packing as view_packing
from writetime.view import refreshing

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("count", [1, 4])
def test_rows_that_compress_well_are_not_packed_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """What is sorted at once is far less than what counts as a small file, as with rows that Parquet makes 32 times
    smaller. 5 files fill it.
    """
    monkeypatch.setattr(view_packing, "FAN", 4)
    for module in (packing, view_packing):
        monkeypatch.setattr(module, "SORTED_AT_ONCE", 64 << 10)
    replaced: list[int] = []

    def noted(table: LakeTable, *given: Any) -> int:
        replaced.append(view_packing.pack(table, *given))
        return replaced[-1]

    monkeypatch.setattr(refreshing, "pack", noted)
    settings, table = settings_at(tmp_path, buckets=count), new_table(tmp_path, buckets=count)
    for number in range(48):
        add(table, [write(number, 1, number, v="x" * (12 << 10))], number)
        refreshing.refresh(settings, table)
    assert max(replaced) <= 4 * count
    # With several buckets, files of all buckets are packed, and then those of a bucket.
    assert sum(replaced) <= 2 * 48
    names = [column.label for column in table.schema().columns]
    assert unordered([by_query(table.view.storage.address).select(names)]) == unordered(views.virtual(table))


def test_few_files_are_left_whatever_the_size_of_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader opens each file to find a key. Batches are as large as one file of all buckets may be, so the rows of
    several batches would be 16 files if few rows were those of one batch.
    """
    monkeypatch.setattr(view_packing, "FAN", 4)
    monkeypatch.setattr(buckets, "FEW_ROWS", 1)
    settings, table = settings_at(tmp_path, buckets=16), new_table(tmp_path, buckets=16)
    for number in range(21):
        add(table, [write(key, 1, number) for key in range(15 * number, 15 * number + 15)], number)
        refreshing.refresh(settings, table)
    sizes = [file.rows for file in table.view.load().files]
    assert sum(sizes) == 21 * 15
    # The first refresh writes each bucket.
    assert len(sizes) <= 16 + 2 * 3
