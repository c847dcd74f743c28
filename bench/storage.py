"""SSTables and commit logs to Arrow, against Cassandra's own readers, on the same files in one run.

    python bench/storage.py [ROWS]

Prints JSON: for each reader the rows, CPU seconds and wall seconds, and the ratios of rows per CPU second. The peers
are
`SSTableReader` (a JVM that looks at every cell; first and best of its passes), `sstabledump -l`, and `CommitLogReader`.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import oracle
from writetime.storage.files import find_sstables
from writetime.storage.infer import infer_schema
from writetime.storage.sstable import SSTable


def measured(work: Callable[[], int]) -> dict[str, Any]:
    """Run something twice and measure the second run, as the first one loads compiled code."""
    work()
    cpu, wall = time.process_time(), time.perf_counter()
    rows = work()
    return {"rows": rows, "cpu": round(time.process_time() - cpu, 3), "wall": round(time.perf_counter() - wall, 3)}


def child(command: list[str]) -> dict[str, float]:
    """Run a program, with its output thrown away, and measure all of it."""
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu": round(cpu, 3), "wall": round(time.perf_counter() - wall, 3)}


def sstables(rows: int) -> dict[str, Any]:
    """Compare the readers of SSTables."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "bench" / "events"
        folder.mkdir(parents=True)
        subprocess.run(oracle.java_command("Oracle", "write", folder, str(rows)), check=True, capture_output=True)
        (location,) = find_sstables(str(folder))
        data = location.path("Data.db")
        schema = infer_schema([location])
        cells = ["clustering1", *[c.name for c in schema.regular]]

        def scan(fields: list[str] | None) -> int:
            return sum(batch.num_rows for batch in SSTable(location, schema).scan(fields))

        ours = measured(lambda: scan(None))
        only = measured(lambda: scan(["key1", *cells, "marker", "tombstone"]))
        passes = oracle.run("scan", data, "4")
        dump = child(oracle.java_command("org.apache.cassandra.tools.SSTableExport", "-l", data))
        best = min(p["cpu"] for p in passes)
        return {
            "data_bytes": os.path.getsize(data),
            "writetime": ours,
            "writetime, without key, token, position, origin": only,
            "SSTableReader, first pass": passes[0],
            "SSTableReader, best pass": min(passes, key=lambda p: p["cpu"]),
            "sstabledump": dump,
            "times SSTableReader, first pass": round(passes[0]["cpu"] / ours["cpu"], 2),
            "times SSTableReader, best pass": round(best / ours["cpu"], 2),
            "times SSTableReader, best pass, same content": round(best / only["cpu"], 2),
            "times sstabledump": round(dump["cpu"] / ours["cpu"], 1),
        }


if __name__ == "__main__":
    print(json.dumps(sstables(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000), indent=2))
