"""What a refresh costs if no row has changed: files that are written, decoded or opened, for tables of any size."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.lake_answers import unordered
from tests.support.made import add, new_table, settings_at, write
from writetime.core.config import Settings
from writetime.files import cache
from writetime.files.cache import Cache
from writetime.lake import state, views
from writetime.lake.table import LakeTable
from writetime.row_events import stream
from writetime.view.refreshing import refresh

_HOUR = 3600


def expiring(id_: int, seconds: int) -> dict[str, Any]:
    """A row that expires so many seconds from now."""
    now = time.time_ns() // 1000
    row, expiry = write(id_, 1, now, v="a"), now // 1_000_000 + seconds
    row["marker"] |= {"ttl": seconds, "expiry": expiry}
    row["v"] |= {"ttl": seconds, "deletion_time": expiry}
    return row


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The files of the lake that are decoded, and those that are opened for the cache."""
    found, decode = Counter[str](), cache.decode

    class Opened(pq.ParquetFile):
        def __init__(self, *args: Any, **options: Any) -> None:
            found["opened"] += 1
            super().__init__(*args, **options)

    def decoded(source: pq.ParquetFile) -> Any:
        found["decoded"] += 1
        return decode(source)

    monkeypatch.setattr(pq, "ParquetFile", Opened)
    monkeypatch.setattr(cache, "decode", decoded)
    return found


def as_another_process(table: LakeTable) -> None:
    """Forget the files that are open. Nothing is kept on the disk, as if the table were much larger than the cache."""
    cache.open_files.close_all()
    cache.bounds.clear()
    table.cache = Cache(smallest=0)


@pytest.mark.parametrize("rounds", [1, 6])
def test_no_file_without_ttl_is_decoded(tmp_path: Path, counts: Counter[str], rounds: int) -> None:
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    for number in range(rounds):
        add(table, [write(100 * number + i, 1, 5, v="a") for i in range(20)], number)
        state.fold(table)
    refresh(settings, table)
    stream.extend(table)
    as_another_process(table)
    counts.clear()
    assert refresh(settings, table).written == 0
    assert stream.extend(table) == 0
    files = len(table.state.load().files)
    assert counts == {"opened": files}
    # This process knows it from now on.
    assert refresh(settings, table).written == 0
    assert counts == {"opened": files}
    add(table, [expiring(1000, _HOUR)], rounds)
    state.fold(table)
    refresh(settings, table)
    as_another_process(table)
    counts.clear()
    assert refresh(settings, table).written == 0
    # It expires later.
    assert counts["decoded"] == 0


def written(table: LakeTable, settings: Settings, *, whole: bool = False) -> int:
    """The rows that a refresh writes. If it writes none, it makes no commit and no file."""
    folder = Path(table.view.storage.address)
    before = table.view.load().version, set(folder.rglob("*.parquet"))
    done = refresh(settings, table, whole=whole)
    if not done.written:
        assert (table.view.load().version, set(folder.rglob("*.parquet"))) == before
        assert done.rows == table.view.load().rows
    return done.written


def test_a_rewritten_view_is_written_only_if_a_row_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, settings = new_table(tmp_path), settings_at(tmp_path, view="rewritten")
    add(table, [*(write(i, 1, 5, v="a") for i in range(20)), expiring(100, _HOUR)], 1)
    assert written(table, settings) == 21
    assert written(table, settings) == 0
    # Watermarks, and a fold, change no row.
    table.changes.append([], "watermarks", 1)
    state.fold(table)
    assert written(table, settings) == 0
    add(table, [write(3, 1, 6, v="b")], 2)
    assert written(table, settings) == 21
    assert written(table, settings, whole=True) == 21
    DeltaTable(table.view.storage.address).delete("id = 5")
    assert written(table, settings) == 21
    with monkeypatch.context() as later:
        later.setattr(views, "time_now", lambda: time.time_ns() // 1000 + 2 * _HOUR * 1_000_000)
        assert written(table, settings) == 20
        assert written(table, settings) == 0
    # The clock was ahead.
    assert written(table, settings) == 21
    plain = DeltaTable(table.view.storage.address).to_pyarrow_table()
    names = [column.label for column in table.schema().columns]
    assert unordered([plain.select(names)]) == unordered(views.virtual(table))
    assert written(table, settings_at(tmp_path), whole=True) == 21
    # The view has deletion vectors from then on.
    assert written(table, settings) == 21
