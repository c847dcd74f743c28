"""SSTables and commit logs to Arrow, against Cassandra's own readers, on the same files in one run.

    python -m bench.storage [ROWS]

Prints JSON: for each reader the rows, CPU seconds and wall seconds, and the ratios of rows per CPU second. The peers
are `SSTableReader` (a JVM that looks at every cell; first and best of its passes), `sstabledump -l`,
and `CommitLogReader`.
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

from cassandra.concurrent import execute_concurrent_with_args

from tests import oracle
from tests.storage.databases import FormatServer
from writetime.storage.commitlog import CommitLogReader
from writetime.storage.files import find_sstables
from writetime.storage.infer import infer_schema
from writetime.storage.segment import find_segments
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


def commit_logs(writes: int) -> dict[str, Any]:
    """Compare the readers of commit logs, on the segments of a server that took single-row inserts of five columns."""
    with tempfile.TemporaryDirectory() as scratch:
        server = FormatServer(Path(scratch), "oa", commitlog_sync="periodic", commitlog_sync_period="1000ms")
        try:
            server.start()
            session = server.session()
            session.execute("CREATE KEYSPACE b WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
            session.execute(
                "CREATE TABLE b.t (k int PRIMARY KEY, a text, n bigint, p double, w text, x int) WITH cdc = true"
            )
            insert = session.prepare("INSERT INTO b.t (k, a, n, p, w, x) VALUES (?, ?, ?, ?, ?, ?)")
            rows = ((i, f"a{i % 7}", i * 3, i / 2, f"note {i}", i % 100) for i in range(writes))
            execute_concurrent_with_args(session, insert, rows, concurrency=64)
            schemas = server.schemas()
        finally:
            server.stop()
        found = find_segments(str(server.cdc_raw))
        (schema,) = (s for s in schemas if s.keyspace == "b")

        def read() -> int:
            reader = CommitLogReader(schemas, [schema.full_name])
            return sum(batch.num_rows for segment in found for _, batch in reader.read(segment))

        ours = measured(read)
        passes = oracle.segments([schema], [], [s.path for s in found], mode="commitlog-scan")
        best = min(passes, key=lambda p: p["cpu"])
        return {
            "bytes": sum(os.path.getsize(s.path) for s in found),
            "writetime": ours,
            "writetime, changes per CPU second": round(ours["rows"] / ours["cpu"]),
            "CommitLogReader, first pass": passes[0],
            "CommitLogReader, best pass": best,
            "times CommitLogReader, first pass": round(passes[0]["cpu"] / ours["cpu"], 2),
            "times CommitLogReader, best pass": round(best["cpu"] / ours["cpu"], 2),
        }


if __name__ == "__main__":
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    print(json.dumps({"sstables": sstables(rows), "commit logs": commit_logs(rows // 10)}, indent=2))
