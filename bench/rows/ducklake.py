"""DuckLake: MERGE, then `table_changes` of the new snapshot. Data and catalog are on the local disk.

DuckDB loads the extension from the package duckdb-extension-ducklake, which must have DuckDB's version.
"""

import importlib
import time
from pathlib import Path

import duckdb
import pyarrow as pa

from bench.generated import COLUMNS
from bench.rows.batches import Batch
from bench.rows.systems import Steps, Unavailable, columns_of, keys_of
from writetime.schema.table import TableSchema

CANNOT = {
    "expiry": "no TTLs",
    "late": "no write times: a column of them would order the writes of a row, but a deleted row would come back",
}
_SIDES = "CASE WHEN change_type IN ('insert', 'update_postimage') THEN 'after' ELSE 'before' END AS side"


class DuckLake:
    """A table in a DuckLake."""

    def __init__(self, schema: TableSchema, folder: Path) -> None:
        try:
            package = importlib.import_module("duckdb_extension_ducklake")
        except ImportError:
            raise Unavailable(f"it needs `pip install duckdb-extension-ducklake=={duckdb.__version__}`") from None
        extension = next(Path(str(package.__file__)).parent.rglob("ducklake.duckdb_extension"))
        self._columns = columns_of(schema)
        self._keys = ", ".join(keys_of(schema))
        self._database = duckdb.connect()
        self._database.load_extension(str(extension))
        self._database.execute(f"ATTACH 'ducklake:{folder}/catalog.ducklake' AS lake (DATA_PATH '{folder}/data')")

    def load(self, first: Path) -> None:
        """Load the first rows, in one file or more."""
        values = ", ".join(self._columns)
        self._database.execute(f"CREATE TABLE lake.rows AS SELECT {values} FROM read_parquet('{first}')")

    def apply(self, batch: Batch) -> tuple[Steps, pa.Table]:
        """Merge a batch, and read the changed rows."""
        values, rows = ", ".join(self._columns), self._database.from_arrow(batch.rows)
        rows.create_view("batch")
        # DuckLake allows only one action for rows that match.
        if batch.rows["gone"][0].as_py():
            actions = "WHEN MATCHED THEN DELETE"
        else:
            new = ", ".join(f"batch.{name}" for name in self._columns)
            actions = (
                f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{name} = batch.{name}' for name in COLUMNS)} "
                f"WHEN NOT MATCHED THEN INSERT ({values}) VALUES ({new})"
            )
        start = time.process_time()
        self._database.execute(f"MERGE INTO lake.rows USING batch USING ({self._keys}) {actions}")
        merged = time.process_time()
        (newest,) = self._database.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchall()[0]
        images = self._database.sql(
            f"SELECT {_SIDES}, {values} FROM lake.table_changes('rows', {newest}, {newest})"
        ).to_arrow_table()
        return {"merge": merged - start, "events": time.process_time() - merged}, images

    def rows(self) -> pa.Table:
        """Return all rows."""
        return self._database.sql(f"SELECT 'rows' AS side, {', '.join(self._columns)} FROM lake.rows").to_arrow_table()

    def close(self) -> None:
        """Close the database."""
        self._database.close()
