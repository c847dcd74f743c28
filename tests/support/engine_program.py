"""A program that queries Iceberg tables by engines of other versions: `python tests/support/engine_program.py JAR`,
with the jar of Iceberg's runtime for Spark. Its PYTHONPATH has their packages, and nothing of the project.

It reads a line of JSON for each query: the engine, the folder of the table, what to select, a WHERE clause, and the
file of the answer, in Arrow's format. It prints a line of JSON for each: null, or why there is no answer.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa


@cache
def _spark(jar: str) -> Any:
    from pyspark.sql import SparkSession

    options: dict[str, Any] = {
        "spark.master": "local[1]",
        "spark.jars": jar,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    return SparkSession.builder.config(map=options).getOrCreate()


def _by_spark(jar: str, table: str, what: str, where: str) -> pa.Table:
    spark = _spark(jar)
    found = spark.read.format("iceberg").load(table)
    return spark.sql(f"SELECT {what} FROM {{found}} {where}", found=found).toArrow()


def _by_clickhouse(_jar: str, table: str, what: str, where: str) -> pa.Table:
    import chdb  # pyright: ignore[reportMissingImports]

    options = "SETTINGS output_format_arrow_string_as_string = 1"
    answer = chdb.query(f"SELECT {what} FROM icebergLocal('{table}/') {where} {options}", "Arrow")
    return pa.ipc.open_file(pa.py_buffer(answer.bytes())).read_all()


_ENGINES: dict[str, Callable[[str, str, str, str], pa.Table]] = {"clickhouse": _by_clickhouse, "spark": _by_spark}


def _serve(jar: str) -> None:
    # Engines may print.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        engine, table, what, where, target = json.loads(line)
        fault = None
        try:
            found = _ENGINES[engine](jar, table, what, where)
            with pa.OSFile(target, "wb") as file, pa.ipc.new_file(file, found.schema) as writer:
                writer.write_table(found)
        except Exception:
            fault = traceback.format_exc()
        answers.write(json.dumps(fault) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
