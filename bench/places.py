"""The cost of memory alone: 10,000 random places are read from mapped arrays of several sizes.

python -m bench.places [--rows 1000000 10000000 100000000]

Each size has seven columns of 8 bytes, like rows of five values with a token and a write time. The first column is
sorted, and is searched for the places. Then the values of all columns are read. 100 million rows need 5.6 GB of disk
and of memory.
"""

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

_COLUMNS = 7
_PLACES = 10_000
_ROUNDS = 40
# The first round maps the pages. Later rounds find all of them mapped.
_COUNTED = 10
_CHUNK = 5_000_000


def measure(file: Path, rows: int) -> tuple[float, float, int]:
    """Return CPU seconds of the first round, and the median of the last ones with their page faults."""
    written = np.memmap(file, np.int64, "w+", shape=(_COLUMNS, rows))
    for column in written:
        for start in range(0, rows, _CHUNK):
            column[start : start + _CHUNK] = np.arange(start, min(rows, start + _CHUNK))
    written.flush()
    del written
    columns = np.memmap(file, np.int64, "r", shape=(_COLUMNS, rows))
    random, spent, faults = np.random.default_rng(1), [], 0
    for count in range(_ROUNDS):
        wanted = np.sort(random.integers(0, rows, _PLACES))
        if count == _ROUNDS - _COUNTED:
            faults = -resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.process_time()
        places = columns[0].searchsorted(wanted)
        for column in columns:
            column.take(places)
        spent.append(time.process_time() - start)
    faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return spent[0], statistics.median(spent[-_COUNTED:]), faults


def main() -> None:
    """Print a line per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000, 100_000_000])
    with tempfile.TemporaryDirectory() as folder:
        for rows in parser.parse_args().rows:
            file = Path(folder) / "columns"
            first, warm, faults = measure(file, rows)
            file.unlink()
            print(f"{rows:,} rows: first {first * 1000:.1f} CPU ms, warm {warm * 1000:.1f}, page faults {faults}")


if __name__ == "__main__":
    main()
