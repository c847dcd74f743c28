"""What reads a view: the engines of users, by the address of its Delta table."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import duckdb_extension_delta
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

Reader = Callable[[str], pa.Table]


def by_duckdb(at: str) -> pa.Table:
    """Read by DuckDB."""
    with duckdb.connect() as connection:
        extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
        connection.load_extension(str(extension))
        return connection.execute(f"SELECT * FROM delta_scan('{at}')").to_arrow_table()


def by_polars(at: str) -> pa.Table:
    """Read by Polars."""
    return pl.scan_delta(at).collect().to_arrow(compat_level=pl.CompatLevel.oldest())


def by_query(at: str) -> pa.Table:
    """Read by the query engine of delta-rs."""
    return queried(DeltaTable(at))


def queried(opened: DeltaTable) -> pa.Table:
    """Read a table that is open."""
    return pa.table(QueryBuilder().register("view", opened).execute("SELECT * FROM view").read_all())


READERS: dict[str, Reader] = {"duckdb": by_duckdb, "polars": by_polars, "delta-rs": by_query}
