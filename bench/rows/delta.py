"""Delta Lake on Spark: MERGE INTO with deletion vectors, then the change data feed of the new version."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.generated import COLUMNS
from bench.rows.batches import Batch
from bench.rows.systems import Steps, Unavailable, columns_of, keys_of
from bench.storage.measure import with_others
from writetime.core.config import load
from writetime.schema.table import TableSchema

CANNOT = {
    "expiry": "no TTLs",
    "late": "no write times: a column of them would order the writes of a row, but a deleted row would come back",
}
_SIDES = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 'after' ELSE 'before' END AS side"


class DeltaMerge:
    """A Delta table of Spark."""

    def __init__(self, schema: TableSchema, folder: Path) -> None:
        try:
            from writetime.clients.spark import spark_conf, start_session
        except ImportError:
            raise Unavailable("it needs `pip install 'writetime[spark]'`") from None
        conf = spark_conf(load()) | {"spark.master": "local[*]", "spark.driver.memory": "4g"}
        self._spark = start_session(conf)
        self._spark.sparkContext.setLogLevel("ERROR")
        self._table = f"delta.`{folder}/rows`"
        self._columns = columns_of(schema)
        self._on = " AND ".join(f"old.{name} = new.{name}" for name in keys_of(schema))
        self._version = 0

    def load(self, first: Path) -> None:
        """Load the first rows."""
        self._spark.read.parquet(str(first)).createOrReplaceTempView("first")
        self._spark.sql(
            f"CREATE TABLE {self._table} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
            f"'delta.enableChangeDataFeed' = 'true') AS SELECT {', '.join(self._columns)} FROM first"
        )

    def apply(self, batch: Batch) -> tuple[Steps, pa.Table]:
        """Merge a batch, and read the changed rows."""
        gateway: Any = self._spark.sparkContext._gateway
        values = ", ".join(self._columns)
        self._spark.read.parquet(str(batch.path)).createOrReplaceTempView("batch")
        with with_others(gateway.proc.pid) as merging:
            self._spark.sql(
                f"MERGE INTO {self._table} AS old USING batch AS new ON {self._on} "
                "WHEN MATCHED AND new.gone THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{c} = new.{c}' for c in COLUMNS)} "
                f"WHEN NOT MATCHED AND NOT new.gone THEN INSERT ({values}) "
                f"VALUES ({', '.join(f'new.{c}' for c in self._columns)})"
            ).collect()
        self._version += 1
        with with_others(gateway.proc.pid) as reading:
            feed = self._spark.read.format("delta").option("readChangeFeed", "true")
            feed = feed.option("startingVersion", self._version).option("endingVersion", self._version)
            images = feed.table(self._table).selectExpr(_SIDES, *self._columns).toArrow()
        return {"merge": merging[0], "events": reading[0]}, images

    def rows(self) -> pa.Table:
        """Return all rows."""
        return self._spark.table(self._table).selectExpr("'rows' AS side", *self._columns).toArrow()

    def close(self) -> None:
        """Stop the session."""
        self._spark.stop()
