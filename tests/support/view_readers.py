"""The engines that users read a view with, by the address of its Delta table."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

Reader = Callable[[str], pa.Table]


@cache
def duckdb_with_delta() -> duckdb.DuckDBPyConnection:
    """DuckDB that knows Delta. One for all tests, as loading the extension takes a fifth of a CPU second.

    The lock has the extension. The newest DuckDB may have none yet: then the test is skipped.
    """
    extension = pytest.importorskip("duckdb_extension_delta")
    connection = duckdb.connect()
    connection.load_extension(str(next(Path(extension.__file__).parent.rglob("delta.duckdb_extension"))))
    return connection


def by_duckdb(at: str, columns: str = "*") -> pa.Table:
    """Read by DuckDB."""
    with duckdb_with_delta().cursor() as connection:
        return connection.execute(f"SELECT {columns} FROM delta_scan('{at}')").to_arrow_table()


def by_polars(at: str) -> pa.Table:
    """Read by Polars."""
    return pl.scan_delta(at).collect().to_arrow(compat_level=pl.CompatLevel.oldest())


def by_query(at: str) -> pa.Table:
    """Read by the query engine of delta-rs."""
    return queried(DeltaTable(at))


def queried(opened: DeltaTable) -> pa.Table:
    """Read a table that is open."""
    return pa.table(QueryBuilder().register("view", opened).execute("SELECT * FROM view").read_all())


# DuckDB is the last, because the others have read when a test is skipped.
READERS: dict[str, Reader] = {"polars": by_polars, "delta-rs": by_query, "duckdb": by_duckdb}
