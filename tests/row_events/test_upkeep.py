"""The benchmark of a table's upkeep compares events and view with DuckDB; here it does so for a small table."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_of_rows_finds_no_difference_and_prints_each_kind_of_batches() -> None:
    command = [sys.executable, "-m", "bench.rows", "--rows", "2000", "--batches", "1", "--peers"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for shape in ("a row per partition", "100,000 rows per partition"):
        _, _, text = done.stdout.partition(f"{shape}, 2,000 rows: ")
        titles = [line.strip() for line in text.splitlines()[1:11:2]]
        assert titles == [
            "updates of 100 rows",
            "updates of 200 rows",
            "deletions of 200 rows",
            "200 rows expire, 200 are written with a TTL",
            "updates of 200 rows, 1 % of them late",
        ]
