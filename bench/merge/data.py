"""Lakes of partial updates to fold, and the digest of the latest cells in each result."""

import os
import shutil
from pathlib import Path

import duckdb

from bench.generated import COLUMNS, ROWS, add, updates
from writetime.core import config
from writetime.lake.table import LakeTable, create_table, open_table

# The number of updates that are merged before the measurement.
WARM_UP = 100_000


def write(lake: Path, count: int, per_key: int, columns: int) -> int:
    """Write a lake whose changes are partial updates: `per_key` updates per key, and `columns` of five columns per
    update. Return their bytes.
    """
    table = create_table(config.load(lake={"path": str(lake)}), ROWS)
    add(table, ROWS, updates(count // per_key, count, 1, columns), 1)
    return sum(file.size for file in table.changes.load().files)


def copy(lake: Path, to: Path) -> None:
    """Copy a lake, so that the copy is independent of it."""
    shutil.copytree(lake, to, copy_function=os.link)


def opened(lake: Path) -> LakeTable:
    """Open the table of a lake."""
    return open_table(config.load(lake={"path": str(lake)}), ROWS.full_name)


def files(lake: Path) -> list[str]:
    """Return the files of changes."""
    changes = opened(lake).changes
    return [f"{changes.storage.address}/{file.path}" for file in changes.load().files]


def state(lake: Path) -> Path:
    """Return the folder of the state."""
    return Path(opened(lake).state.storage.address)


def digest(folder: Path) -> tuple[int, ...]:
    """Return the number of rows in a folder of Parquet files, and a sum over the latest cells of each column."""
    sums = ", ".join(f"sum(hash(id, {c}.write_time, {c}.value))" for c in COLUMNS)
    source = f"read_parquet('{folder}/**/*.parquet', hive_partitioning = false)"
    answer = duckdb.sql(f"SELECT count(*), {sums} FROM {source}").fetchone()
    assert answer is not None
    return tuple(int(number) for number in answer)
