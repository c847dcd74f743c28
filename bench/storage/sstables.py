"""SSTables to Arrow, to Parquet and back, compared with Cassandra's own reader, dump and writer and with CQLite, and
the memory that reading needs.

The table is that of `tests/support/oracle`: a UUID and an int as the key, 16 rows per partition, five columns. The
readers read all of each cell: value, write time, TTL and deletion time. CQLite exports only values.
"""

import itertools
import json
import subprocess
from contextlib import closing
from pathlib import Path

import cqlite
import pyarrow as pa
import pyarrow.parquet as pq

from bench.storage.measure import Comparison, best, child, here, in_turns, printed, python
from tests.support import oracle
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import SSTable
from writetime.storage.sstable_writer import SSTableWriter

_DUMP = "org.apache.cassandra.tools.SSTableExport"
_CREATE = (
    "CREATE TABLE bench.events (id uuid, n int, kind text, amount bigint, price double, at timestamp, note text, "
    "PRIMARY KEY (id, n));"
)


def write(folder: Path, rows: int) -> Location:
    """Write an SSTable of the table `bench.events` with Cassandra's own writer."""
    subprocess.run(_writing(folder, rows), check=True, capture_output=True)
    (location,) = find_sstables(str(folder))
    return location


def compare(scratch: Path, location: Location, rows: int, passes: int) -> list[Comparison]:
    """Compare the readers on one file; the first pass of each, and its best one."""
    data = location.path("Data.db")
    ours = here(_scan, data, passes=passes)
    theirs = printed(oracle.run("scan", data, str(passes)))
    one = write(scratch / "one" / "bench" / "events", 16).path("Data.db")
    start = child(oracle.java_command(_DUMP, "-l", one), 16)
    dump = child(oracle.java_command(_DUMP, "-l", data), rows)
    own_start = child(python("bench.storage.memory", one), 16)
    own = child(python("bench.storage.memory", data), rows)
    return [
        Comparison("SSTable to Arrow, best pass", best(ours), "SSTableReader, best pass", best(theirs), 2),
        Comparison("SSTable to Arrow, first pass", ours[0], "SSTableReader, first pass", theirs[0]),
        Comparison(
            "SSTable to Arrow, best pass", best(ours), "sstabledump -l, without its start", dump.without(start), 15
        ),
        Comparison("SSTable to Arrow, whole process", own, "sstabledump -l, whole process", dump),
        Comparison("start of a process, 16 rows", own_start, "sstabledump -l, 16 rows", start),
    ]


def compare_writers(scratch: Path, location: Location, rows: int, passes: int) -> Comparison:
    """Compare the writers on the same rows, both without their start. Cassandra's also makes the rows."""
    start, whole = (child(_writing(scratch / f"writer-{count}", count), count) for count in (16, rows))
    schema, changes = SSTable(location).schema, list(SSTable(location).scan())
    numbers = itertools.count()

    def again(batches: list[pa.RecordBatch]) -> int:
        with SSTableWriter(str(scratch / f"written-{next(numbers)}"), schema) as writer:
            for batch in batches:
                writer.write(batch)
        return writer.changes

    (ours,) = in_turns(again, changes, passes=passes)
    return Comparison("Arrow to SSTable, best pass", ours, "CQLSSTableWriter", whole.without(start), 4)


def compare_parquet(scratch: Path, location: Location, passes: int) -> Comparison:
    """Compare an export to Parquet with that of CQLite, which writes only the values of the rows."""
    schema = scratch / "events.cql"
    schema.write_text(_CREATE)
    ours = here(_export, location.path("Data.db"), str(scratch / "ours.parquet"), passes=passes)
    folder = str(Path(location.folder).parents[1])
    theirs = here(_export_by_cqlite, folder, str(schema), str(scratch / "theirs.parquet"), passes=passes)
    return Comparison("SSTable to Parquet, best pass", best(ours), f"CQLite {cqlite.version()}", best(theirs))


def _export(data: str, target: str) -> int:
    (location,) = find_sstables(data)
    batches = SSTable(location).scan()
    first = next(batches)
    count = 0
    with pq.ParquetWriter(target, first.schema) as writer:
        for batch in itertools.chain([first], batches):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _export_by_cqlite(folder: str, schema: str, target: str) -> int:
    with closing(cqlite.open(folder, schema=schema)) as database:
        return database.export_parquet("SELECT * FROM bench.events", target)


def _writing(folder: Path, rows: int) -> list[str]:
    folder.mkdir(parents=True)
    return oracle.java_command("Oracle", "write", folder, str(rows))


def _scan(data: str) -> int:
    (location,) = find_sstables(data)
    return sum(batch.num_rows for batch in SSTable(location).scan())


def memory(*locations: Location) -> list[tuple[int, int, int, int]]:
    """Return for each file the number of rows, the size, and the peak memory before and after reading (in bytes)."""
    results = []
    for location in locations:
        command = python("bench.storage.memory", location.path("Data.db"))
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        results.append((found["rows"], found["data"], found["before"], found["after"]))
    return results
