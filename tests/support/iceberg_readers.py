"""The engines that users read Iceberg tables with, by the folder of a table without a catalog."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable


@dataclass(frozen=True)
class Reader:
    """An engine: how it reads a table, or those rows of it with an `id`, and how it counts all rows."""

    rows: Callable[[Path, int | None], pa.Table]
    count: Callable[[Path], int]


def metadata_of(folder: Path) -> str:
    """Return the path of the newest version of a table's metadata."""
    version = (folder / "metadata" / "version-hint.text").read_text()
    return str(folder / "metadata" / f"v{version}.metadata.json")


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """DuckDB that knows Iceberg. One for all tests, as loading the extensions takes time.

    The lock has the extensions. The newest DuckDB may have none yet: then the test is skipped.
    """
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        package = pytest.importorskip(f"duckdb_extension_{name}")
        connection.load_extension(str(next(Path(package.__file__).parent.rglob(f"{name}.duckdb_extension"))))
    return connection


def _by_duckdb(what: str, folder: Path, where: str = "") -> pa.Table:
    with _duckdb().cursor() as connection:
        return connection.execute(f"SELECT {what} FROM iceberg_scan('{metadata_of(folder)}') {where}").to_arrow_table()


def _by_polars(folder: Path, id_: int | None) -> pa.Table:
    scan = pl.scan_iceberg(metadata_of(folder))
    found = scan if id_ is None else scan.filter(pl.col("id") == id_)
    return found.collect().to_arrow(compat_level=pl.CompatLevel.oldest())


def _by_pyiceberg(folder: Path, id_: int | None) -> pa.Table:
    return opened(folder).scan("true" if id_ is None else f"id = {id_}").to_arrow()


def opened(folder: Path) -> StaticTable:
    """Open the newest version of a table by pyiceberg."""
    return StaticTable.from_metadata(metadata_of(folder))


READERS = {
    "duckdb": Reader(
        lambda folder, id_: _by_duckdb("*", folder, "" if id_ is None else f"WHERE id = {id_}"),
        lambda folder: _by_duckdb("count(*)", folder)[0][0].as_py(),
    ),
    "polars": Reader(_by_polars, lambda folder: pl.scan_iceberg(metadata_of(folder)).select(pl.len()).collect().item()),
    "pyiceberg": Reader(_by_pyiceberg, lambda folder: opened(folder).scan().count()),
}
