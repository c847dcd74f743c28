"""Apache Paimon: one long-lived writer with the look-up changelog, deletion vectors and 4 buckets (`Paimon.java`).

Paimon needs Hadoop's classes, which are in pyspark's jars.
"""

import importlib.util
import os
import subprocess
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from bench.generated import COLUMNS
from bench.rows.batches import Batch
from bench.rows.systems import Steps, Unavailable, columns_of
from writetime.runtime import jars
from writetime.runtime.java import java
from writetime.schema.table import TableSchema

CANNOT = {
    "expiry": "`record-level.expire-time` drops rows in some later compaction",
    "late": "`sequence.field` orders the writes of a row, but a deleted row comes back",
}
_HADOOP = ("hadoop-client-*.jar", "slf4j-api-*.jar", "jcl-over-slf4j-*.jar", "log4j-*.jar")


class Paimon:
    """A primary key table of Paimon, in a Java process of its own."""

    def __init__(self, schema: TableSchema, folder: Path) -> None:
        self._schema, self._columns, self._folder = schema, columns_of(schema), folder
        class_path = [str(folder), *_class_path(folder)]
        self._errors = (folder / "paimon.log").open("w")
        self._process = subprocess.Popen(
            [str(java()), "-Xmx4g", "-cp", os.pathsep.join(class_path), "Paimon", str(folder), _shape(schema)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def load(self, first: Path) -> None:
        """Load the first rows, and read their events."""
        path = self._folder / "first.csv"
        with pq.ParquetFile(first) as file, path.open("wb") as target:
            for part in file.iter_batches():
                self._write_csv(pa.Table.from_batches([part]), target)
        self._command(f"write {path}")
        self._command("events")
        path.unlink()

    def apply(self, batch: Batch) -> tuple[Steps, pa.Table]:
        """Write and commit a batch, and read the changelog."""
        path, dumped = self._folder / "batch.csv", self._folder / "events.csv"
        with path.open("wb") as target:
            self._write_csv(batch.rows, target)
        spent = {"write": self._command(f"write {path}"), "events": self._command("events")}
        self._command(f"dump {dumped}")
        return spent, self._read_csv(dumped)

    def rows(self) -> pa.Table:
        """Return all rows."""
        path = self._folder / "rows.csv"
        self._command(f"rows {path}")
        found = self._read_csv(path)
        return found.set_column(0, "side", pa.repeat("rows", found.num_rows))

    def close(self) -> None:
        """Stop the process."""
        self._process.communicate()
        self._errors.close()

    def _command(self, line: str) -> float:
        """Run a command in the process; return its CPU seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before = self._cpu()
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            self._process.wait()
            raise RuntimeError(f"Paimon failed: {(self._folder / 'paimon.log').read_text()[-3000:]}")
        return self._cpu() - before

    def _cpu(self) -> float:
        return sum(psutil.Process(self._process.pid).cpu_times()[:2])

    def _write_csv(self, rows: pa.Table, target: object) -> None:
        gone = rows["gone"].cast(pa.int8())
        plain = rows.select(self._columns).add_column(0, "gone", gone)
        pa_csv.write_csv(plain, target, pa_csv.WriteOptions(include_header=False, quoting_style="none"))

    def _read_csv(self, path: Path) -> pa.Table:
        keys = {"id": pa.int64(), "n": pa.int32()}
        names = ["side", *self._columns]
        types = {name: {**keys, **COLUMNS}.get(name, pa.string()) for name in names}
        if not path.stat().st_size:
            return pa.schema(list(types.items())).empty_table()
        reading, converting = pa_csv.ReadOptions(column_names=names), pa_csv.ConvertOptions(column_types=types)
        return pa_csv.read_csv(path, read_options=reading, convert_options=converting)


def _shape(schema: TableSchema) -> str:
    return "wide" if schema.clustering else "rows"


def _class_path(folder: Path) -> list[str]:
    """Compile the program into a folder; return its class path."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unavailable("it needs Hadoop's classes, which pyspark has: pip install 'writetime[spark]'")
    found = [*jars.fetch("paimon"), *jars.fetch("cassandra")]
    compiler = next(path for path in found if "ecj" in path.name)
    hadoop = [path for pattern in _HADOOP for path in (Path(spec.origin).parent / "jars").glob(pattern)]
    class_path = [str(path) for path in (found[0], *hadoop)]
    source = Path(__file__).with_name("Paimon.java")
    command = [java(), "-jar", compiler, "-17", "-nowarn", "-cp", os.pathsep.join(class_path), "-d", folder, source]
    subprocess.run([str(part) for part in command], check=True)
    return class_path
