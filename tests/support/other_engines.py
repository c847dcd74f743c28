"""Engines whose packages the environment of the tests cannot have: ClickHouse (chdb), which is large, and Spark of the
version that Iceberg has a runtime for. A program with their packages (`engine_program`) queries tables for the tests.
`make test-iceberg` installs them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from tests.support.iceberg_readers import Reader

CLICKHOUSE, SPARK = "clickhouse", "spark"


class OtherEngines:
    """The program, which runs."""

    def __init__(self, process: "subprocess.Popen[str]", answer: Path) -> None:
        self._process = process
        self._answer = answer

    def reader(self, engine: str) -> Reader:
        """One of the engines."""
        return Reader(
            lambda folder, id_: self.answer(engine, folder, "*", "" if id_ is None else f"WHERE id = {id_}"),
            lambda folder: self.answer(engine, folder, "count(*)")[0][0].as_py(),
        )

    def answer(self, engine: str, table: Path, what: str, where: str = "") -> pa.Table:
        """Query the Iceberg table in a folder. Raises ValueError: the engine refuses it, and says why."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([engine, str(table), what, where, str(self._answer)]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"the program of {engine} has ended: {self._process.wait()}")
        if fault := json.loads(answer):
            raise ValueError(fault)
        with pa.OSFile(str(self._answer)) as file, pa.ipc.open_file(file) as reader:
            return reader.read_all()


@contextmanager
def other_engines(packages: Path, jar: Path, folder: Path) -> Iterator[OtherEngines]:
    """Run the program.

    Args:
        packages: the folder of the engines' packages. Others come from this environment.
        jar: Iceberg's runtime for that Spark.
        folder: where the program puts what it reads, and its log.
    """
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    # An archive of classes is of the other Spark.
    environment.pop("SPARK_SUBMIT_OPTS", None)
    with (folder / "other_engines.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("engine_program.py")), str(jar)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
        )
    try:
        yield OtherEngines(process, folder / "answer.arrow")
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait(60)
