"""The cost of a maintained view for readers: DuckDB and Polars on the view, and on a copy that was just written whole.

python -m bench.view_readers [--rows 1000000] [--batches 1000] [--updates 1000] [--every 50]

Each batch updates random rows, and refreshes the view. After every `--every` batches, each reader aggregates all rows,
and looks for one key. The ratio compares the least CPU times of several reads. At the end, the mean cost of a batch
with all packing is compared with the median.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import duckdb_extension_delta
import polars as pl

from bench.generated import ROWS, add, first_writes, updates
from writetime.core import config
from writetime.core.config import Settings
from writetime.lake import packing, retention, state
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.row_events.stream import extend
from writetime.view.refreshing import refresh

_REPEATS = 10


def readers(database: duckdb.DuckDBPyConnection) -> dict[str, Callable[[str], object]]:
    """Return the queries of each reader, as functions of the view's address."""
    return {
        "DuckDB, all rows": lambda at: database.execute(
            f"SELECT count(*), sum(b), avg(c), max(e) FROM delta_scan('{at}')"
        ).fetchall(),
        "DuckDB, one key": lambda at: database.execute(f"SELECT * FROM delta_scan('{at}') WHERE id = 77").fetchall(),
        "Polars, all rows": lambda at: (
            pl.scan_delta(at).select(pl.len(), pl.col("b").sum(), pl.col("c").mean(), pl.col("e").max()).collect()
        ),
        "Polars, one key": lambda at: pl.scan_delta(at).filter(pl.col("id") == 77).collect(),
    }


def ratio(read: Callable[[str], object], view: str, whole: str) -> float:
    """Return the CPU time of a reader of the view, divided by that of a reader of the copy, each the least of several
    reads. These alternate, so that other programs disturb both alike.
    """
    spent: dict[str, list[float]] = {view: [], whole: []}
    for _ in range(_REPEATS):
        for at, found in spent.items():
            begin = time.process_time()
            read(at)
            found.append(time.process_time() - begin)
    return min(spent[view]) / min(spent[whole])


def written_whole(settings: Settings, table: LakeTable, home: Path) -> str:
    """Return the address of a copy of the view that was just written whole."""
    copy = home / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(settings.lake.path, copy)
    lake = settings.lake.model_copy(update={"path": str(copy)})
    own = settings.model_copy(update={"lake": lake})
    copied = open_table(own, table.name)
    refresh(own, copied, whole=True)
    return copied.view.storage.address


def one_batch(settings: Settings, table: LakeTable, number: int, rows: int, count: int) -> float:
    """Update rows; return the CPU seconds of the row events and of the view's refresh, with all packing."""
    add(table, ROWS, updates(rows, count, number << 32, 5), number)
    begin = time.process_time()
    extend(table)
    refresh(settings, table)
    state.fold(table)
    state.compact(table)
    spent = time.process_time() - begin
    if number % packing.FAN == 0:
        packing.pack_batches(table, table.changes.load())
        retention.trim_logs(table, 1)
    return spent


def main() -> None:
    """Compare the readers on both views."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=1000, help="rows per batch")
    parser.add_argument("--every", type=int, default=50, help="batches between two comparisons")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, duckdb.connect(config={"threads": 1}) as database:
        home = Path(name)
        extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
        database.load_extension(str(extension))
        settings = config.load(lake={"path": str(home / "lake"), "cache": str(home / "cache")})
        table = create_table(settings, ROWS)
        add(table, ROWS, first_writes(ROWS, arguments.rows), 1)
        state.fold(table)
        extend(table)
        refresh(settings, table)
        spent: list[float] = []
        worst = dict.fromkeys(readers(database), 0.0)
        for number in range(2, arguments.batches + 2):
            spent.append(one_batch(settings, table, number, arguments.rows, arguments.updates))
            if number % arguments.every:
                continue
            whole = written_whole(settings, table, home)
            for what, read in readers(database).items():
                worst[what] = max(worst[what], ratio(read, table.view.storage.address, whole))
            live = table.view.load().files
            marked = sum(each.marked for each in live)
            ratios = ", ".join(f"{what} {found:.2f}" for what, found in worst.items())
            print(f"after {number}: {len(live)} files, {marked} marked rows; worst ratios: {ratios}", flush=True)
        mean, median = statistics.mean(spent[5:]), statistics.median(spent[5:])
        print(
            f"CPU s per batch of {arguments.updates}: mean {mean:.3f}, median {median:.3f}, ratio {mean / median:.2f}"
        )


if __name__ == "__main__":
    main()
