"""Batches of changed rows, as a table in memory and as a Parquet file, and their expected results.

A batch has the columns of its table, and `time` (the write time), `gone` (whether the row is deleted) and `expiry` (the
second at which the row expires, or null).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.generated import COLUMNS, keys_of, rows_of, whole
from writetime.schema.table import TableSchema

Digest = dict[str, tuple[int, int]]
_BITS = 32


@dataclass(frozen=True)
class Batch:
    """A batch, and its file. `number` counts the batches of a table; 1 is its first rows."""

    number: int
    rows: pa.Table
    path: Path


class Batches:
    """Makes the batches of one table. They are the same in each run."""

    def __init__(self, schema: TableSchema, count: int, folder: Path) -> None:
        self.schema, self.count, self.folder = schema, count, folder
        self._number = 1
        self._deleted = np.empty(0, np.int64)

    @property
    def next_time(self) -> int:
        """The first write time of the next batch."""
        return self._number + 1 << _BITS

    def first(self) -> Path:
        """Write all rows, with the columns of a batch, as a file."""
        path, time = self.folder / "first.parquet", 1
        with pq.ParquetWriter(path, self._complete(rows_of(self.schema, np.arange(0), _random(0)), 0).schema) as writer:
            for rows in whole(self.schema, self.count):
                writer.write_table(self._complete(rows, time))
                time += rows.num_rows
        return path

    def updates(self, size: int, expiry: int | None = None) -> Batch:
        """Write all columns of random rows; they may expire."""
        random = self._next()
        rows = rows_of(self.schema, self._choose(random, size), random)
        return self._batch(self._complete(rows, self._number << _BITS, expiry))

    def deletions(self, size: int) -> Batch:
        """Delete random rows that no batch has deleted yet.

        Paimon 1.4.2 repeats the DELETE, with the old image, of a row that is deleted twice (its issue 8204).
        """
        chosen = self._choose(self._next(), size + len(self._deleted))
        chosen = chosen[~np.isin(chosen, self._deleted)][:size]
        self._deleted = np.concatenate([self._deleted, chosen])
        keys = keys_of(self.schema, chosen)
        for name, kind in COLUMNS.items():
            keys = keys.append_column(name, pa.nulls(size, kind))
        return self._batch(self._complete(keys, self._number << _BITS, gone=True))

    def late(self, size: int, share: float) -> Batch:
        """Update random rows. A share of the writes is older than all batches, and half of those are to rows that have
        been deleted since.
        """
        random = self._next()
        chosen = self._choose(random, size)
        late = max(2, round(size * share))
        back = self._deleted[: late // 2]
        chosen = np.unique(np.concatenate([back, chosen[~np.isin(chosen, back)][: size - len(back)]]))
        order = np.concatenate([np.flatnonzero(np.isin(chosen, back)), np.flatnonzero(~np.isin(chosen, back))])
        rows = self._complete(rows_of(self.schema, chosen[order], random), self._number << _BITS)
        times = rows["time"].to_numpy().copy()
        times[:late] = (1 << _BITS) + self._number * late + np.arange(late)
        return self._batch(rows.set_column(rows.column_names.index("time"), "time", pa.array(times)))

    def _next(self) -> np.random.Generator:
        self._number += 1
        return _random(self._number)

    def _choose(self, random: np.random.Generator, size: int) -> np.ndarray:
        return random.choice(self.count, size, replace=False, shuffle=False)

    def _complete(self, rows: pa.Table, time: int, expiry: int | None = None, *, gone: bool = False) -> pa.Table:
        count = rows.num_rows
        rows = rows.append_column("time", pa.array(np.arange(time, time + count)))
        rows = rows.append_column("gone", pa.repeat(gone, count))
        return rows.append_column("expiry", pa.repeat(pa.scalar(expiry, pa.int64()), count))

    def _batch(self, rows: pa.Table) -> Batch:
        path = self.folder / f"batch-{self._number}.parquet"
        pq.write_table(rows, path)
        return Batch(self._number, rows, path)


class Expected:
    """The newest write of each row, in DuckDB: the expected result of each system."""

    def __init__(self, schema: TableSchema, first: Path, folder: Path) -> None:
        self._keys = [c.name for c in (*schema.partition_key, *schema.clustering)]
        self._columns = [*self._keys, *COLUMNS]
        self._database = duckdb.connect(str(folder / "expected.duckdb"))
        self._database.execute(f"CREATE TABLE latest AS SELECT * FROM read_parquet('{first}')")
        self._second = 0

    def apply(self, batch: Batch, second: int) -> Digest:
        """Apply a batch, and evaluate expiry at a second; return the digest of the images."""
        keys, values = ", ".join(self._keys), ", ".join(self._columns)
        live = "NOT gone AND (expiry IS NULL OR expiry > {})"
        self._database.execute(f"CREATE OR REPLACE TEMP TABLE batch AS SELECT * FROM read_parquet('{batch.path}')")
        self._database.execute(
            f"CREATE OR REPLACE TEMP TABLE touched AS SELECT {keys} FROM batch UNION SELECT {keys} FROM latest "
            f"WHERE expiry > {self._second} AND expiry <= {second}"
        )
        rows = f"SELECT {values} FROM latest SEMI JOIN touched USING ({keys}) WHERE {live}"
        self._database.execute(f"CREATE OR REPLACE TEMP TABLE earlier AS {rows.format(self._second)}")
        self._database.execute(
            f"MERGE INTO latest USING batch USING ({keys}) "
            "WHEN MATCHED AND batch.time > latest.time THEN UPDATE WHEN NOT MATCHED THEN INSERT"
        )
        self._database.execute(f"CREATE OR REPLACE TEMP TABLE later AS {rows.format(second)}")
        self._second = second
        query = (
            "SELECT 'before' AS side, * FROM (FROM earlier EXCEPT FROM later) "
            "UNION ALL SELECT 'after', * FROM (FROM later EXCEPT FROM earlier)"
        )
        return digest(self._database.sql(query), self._columns)

    def rows(self) -> Digest:
        """Return the digest of all live rows."""
        live = f"NOT gone AND (expiry IS NULL OR expiry > {self._second})"
        return digest(self._database.sql(f"SELECT 'rows' AS side, * FROM latest WHERE {live}"), self._columns)

    def digest(self, found: pa.Table) -> Digest:
        """Return the digest of rows with the column `side`."""
        return digest(self._database.from_arrow(found), self._columns)

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def digest(found: duckdb.DuckDBPyRelation, columns: Sequence[str]) -> Digest:
    """Return for each side the number of rows and a sum over them."""
    types = {"id": "BIGINT", "n": "INTEGER", "a": "INTEGER", "b": "BIGINT", "c": "DOUBLE"}
    hashed = ", ".join(f"{name}::{types.get(name, 'VARCHAR')}" for name in columns)
    rows = found.aggregate(f"side, count(*), sum(hash({hashed}))", "side").fetchall()
    return {side: (count, int(total)) for side, count, total in rows}


def _random(number: int) -> np.random.Generator:
    return np.random.default_rng([number, 1])
