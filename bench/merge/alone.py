"""Finds the latest cells of a lake's changes in a separate process, and prints the cost, as JSON.

python -m bench.merge.alone fold|duckdb|polars LAKE TARGET

All read the same files and write Parquet with zstd compression. The fold writes a state. The others write only the key,
and the latest write time and value of each column. Before the measurement, the process does a small part of the same
work, so it is warm like a Spark session.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl

from bench.generated import COLUMNS
from bench.merge import data
from bench.storage.memory import peak
from writetime.lake import state

Work = Callable[[Path, Path], None]


def fold(lake: Path, _: Path) -> None:
    """Fold with Writetime, into the lake's own state."""
    state.fold(data.opened(lake))


def by_duckdb(lake: Path, target: Path) -> None:
    """Aggregate by `arg_max`."""
    cells = ", ".join(
        f"{{'write_time': max({c}.write_time), 'value': arg_max({c}.value, {c}.write_time)}} AS {c}" for c in COLUMNS
    )
    target.mkdir()
    duckdb.execute(
        f"COPY (SELECT id, {cells} FROM read_parquet($files) GROUP BY id) "
        f"TO '{target}/latest.parquet' (COMPRESSION zstd)",
        {"files": data.files(lake)},
    )


def by_polars(lake: Path, target: Path) -> None:
    """Aggregate by groups."""
    target.mkdir()
    cells = [pl.struct(write_time=_time(c).max(), value=_value(c).get(_time(c).arg_max())).alias(c) for c in COLUMNS]
    changes = pl.scan_parquet(data.files(lake))
    changes.group_by("id").agg(cells).sink_parquet(target / "latest.parquet", compression="zstd")


def _time(column: str) -> pl.Expr:
    return pl.col(column).struct.field("write_time")


def _value(column: str) -> pl.Expr:
    return pl.col(column).struct.field("value")


WORK: dict[str, Work] = {"fold": fold, "duckdb": by_duckdb, "polars": by_polars}

if __name__ == "__main__":
    name, lake, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    before = peak()
    with tempfile.TemporaryDirectory() as scratch:
        warm_up = Path(scratch) / "lake"
        data.write(warm_up, data.WARM_UP, 3, 1)
        WORK[name](warm_up, Path(scratch) / "latest")
    cpu, wall = time.process_time(), time.perf_counter()
    WORK[name](lake, target)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps({"cpu": cpu, "wall": wall, "before": before, "peak": peak()}))
