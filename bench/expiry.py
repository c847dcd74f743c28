"""The cost of expiry for a stream of batches, one per second: a table whose rows expire within a month, and one
without TTLs.

python -m bench.expiry [--rows 10000000] [--batches 60] [--updates 100]

For each batch, row events are computed, the view is refreshed, and the batch is folded. The rows of the first table
expire evenly over the next 30 days, also while the batches run.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.generated import ROWS, add, updates, whole, writes
from writetime.core import config
from writetime.core.config import Settings
from writetime.lake import state
from writetime.lake.table import LakeTable, create_table
from writetime.row_events.stream import extend
from writetime.view.refreshing import refresh

_MONTH = 30 * 86_400
# The first batches decode the files, so they do not count.
_COLD = 5


def built(settings: Settings, rows: int, *, expires: bool) -> LakeTable:
    """Return a table in a lake of its own, with row events and a view."""
    table = create_table(settings, ROWS)
    # The first row expires after the table was built.
    begins = int(time.time()) + 60 + rows // 50_000
    random, at = np.random.default_rng(7), 1
    batches = []
    for part in whole(ROWS, rows):
        count = part.num_rows
        ends = begins + random.integers(0, _MONTH, count)
        batches.append(writes(ROWS, part, np.arange(at, at + count), expiry=(_MONTH, ends) if expires else None))
        at += count
    add(table, ROWS, batches, 0)
    state.fold(table)
    extend(table)
    refresh(settings, table)
    time.sleep(max(begins - time.time(), 0))
    return table


def measure(folder: Path, rows: int, batches: int, count: int, *, expires: bool) -> tuple[float, int]:
    """Return the CPU seconds of a batch (median), and the number of row events of all batches."""
    settings = config.load(lake={"path": str(folder / "lake"), "cache": str(folder / "cache"), "cache_gib": 40})
    table = built(settings, rows, expires=expires)
    spent, events = [], 0
    for number in range(1, batches + 1):
        begun = time.monotonic()
        add(table, ROWS, updates(rows, count, int(time.time() * 1_000_000)), number)
        cpu = time.process_time()
        events += extend(table)
        refresh(settings, table)
        state.fold(table)
        spent.append(time.process_time() - cpu)
        time.sleep(max(1 - (time.monotonic() - begun), 0))
    return statistics.median(spent[_COLD:]), events


def main() -> None:
    """Print a line per table, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--updates", type=int, default=100)
    options = parser.parse_args()
    found = {}
    for expires, name in ((False, "without TTLs"), (True, "with TTLs over a month")):
        with tempfile.TemporaryDirectory() as folder:
            done = measure(Path(folder), options.rows, options.batches, options.updates, expires=expires)
        found[expires] = done[0]
        print(f"{options.rows:,} rows {name}: {done[0]:.4f} CPU s per batch, {done[1]} row events in all", flush=True)
    print(f"ratio {found[True] / found[False]:.2f}")


if __name__ == "__main__":
    main()
