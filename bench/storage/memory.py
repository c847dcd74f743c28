"""Reads one SSTable in a separate process and prints its peak memory, as JSON.

python -m bench.storage.memory DATA_DB
"""

import json
import re
import sys
from pathlib import Path

from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable


def peak() -> int:
    """Return the peak memory of this process so far, in bytes; Linux only (`getrusage` begins with the parent's)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    (location,) = find_sstables(sys.argv[1])
    sstable = SSTable(location)
    before = peak()
    rows = sum(batch.num_rows for batch in sstable.scan())
    print(json.dumps({"rows": rows, "data": sstable.data.length, "before": before, "after": peak()}))
