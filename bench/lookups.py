"""Look-ups by key, and rows as JSON: CPU seconds in Python, and wall seconds of the command.

python -m bench.lookups [--rows 1000000]

Keys are random. As a peer without an index, DuckDB scans the compacted view for the same key.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import duckdb_extension_delta
import numpy as np

from bench.generated import ROWS, add, first_writes
from tests.support.settings import write_settings
from writetime.api.tables import open_table
from writetime.core import config
from writetime.core.config import Settings
from writetime.lake import state
from writetime.lake.table import create_table
from writetime.view.refreshing import refresh

_REPEATS = 20


def spent(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def filled(settings: Settings, rows: int) -> str:
    """Create a table with its view; return the view's address."""
    table = create_table(settings, ROWS)
    add(table, ROWS, first_writes(ROWS, rows), 1)
    state.fold(table)
    refresh(settings, table)
    return table.view.storage.address


def command(*arguments: str) -> tuple[float, float]:
    """Run `writetime view`; return its wall and CPU seconds."""
    begin = time.monotonic()
    program = [sys.executable, "-m", "writetime", "view", ROWS.full_name, *arguments]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.monotonic() - begin, used.ru_utime + used.ru_stime


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as name, duckdb.connect(config={"threads": 1}) as database:
        home = Path(name)
        settings = config.load(lake={"path": str(home / "lake"), "cache": str(home / "cache")})
        write_settings(settings, home / "writetime.toml")
        os.environ["WRITETIME_CONFIG"] = str(home / "writetime.toml")
        view = filled(settings, rows)
        table, random = open_table(ROWS.full_name, settings), np.random.default_rng(1)

        def keys(count: int) -> list[dict[str, int]]:
            return [{"id": number} for number in random.integers(0, rows, count).tolist()]

        # Each bucket's files are decoded once.
        print(f"{rows:,} rows; the first look-up in all buckets: {spent(lambda: table.lookup(keys(1000))):.2f} CPU s")
        for count in (1, 100, 10_000):
            asked = [keys(count) for _ in range(_REPEATS)]
            found = statistics.median(spent(lambda some=some: table.lookup(some)) for some in asked)
            print(f"keys {count:,}: {found * 1000:.1f} CPU ms, the median of {_REPEATS}")
        extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
        database.load_extension(str(extension))
        scan = f"SELECT * FROM delta_scan('{view}') WHERE id = ?"
        theirs = statistics.median(spent(lambda: database.execute(scan, [77]).fetchall()) for _ in range(_REPEATS))
        print(f"DuckDB, a scan for one key: {theirs * 1000:.1f} CPU ms")
        for arguments in (("--where", "id = 77"), ("--format", "jsonl")):
            wall, cpu = min(command(*arguments) for _ in range(3))
            print(f"writetime view {' '.join(arguments)}: {wall:.2f} s, {cpu:.2f} CPU s", flush=True)


if __name__ == "__main__":
    main()
