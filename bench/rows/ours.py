"""The upkeep of a table with Writetime, one function per step.

The measures do not include bringing the changes of a batch into the lake, or writing the input of the peers.
"""

import importlib
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from bench.generated import add, deletions, writes
from bench.rows.batches import Batch
from bench.rows.systems import Steps, Unavailable, columns_of
from writetime.core import config
from writetime.core.arrow import pc
from writetime.core.config import Settings
from writetime.iceberg.metadata_files import metadata_name, newest
from writetime.lake import retention, state
from writetime.lake.projection import ROW_EVENTS, Position
from writetime.lake.table import LakeTable, create_table
from writetime.row_events import stream
from writetime.row_events.stream_files import events_since
from writetime.schema.table import TableSchema
from writetime.view import refreshing

# The TTL that is written with cells. The batch alone decides when they expire.
_TTL = 60


def find_events(table: LakeTable, since: int) -> pa.Table:
    """Compute the row events of the new changes, and read the batches from `since` on."""
    stream.extend(table)
    return pa.concat_tables(events_since(table, since))


def fold(table: LakeTable) -> None:
    """Fold the new changes into the state."""
    state.fold(table)


def compact(table: LakeTable) -> None:
    """Compact the levels of the state."""
    state.compact(table)


def show(settings: Settings, table: LakeTable) -> None:
    """Refresh the view, and pack its files."""
    refreshing.refresh(settings, table)


class Writetime:
    """A table of the lake."""

    extensions: tuple[str, ...] = ("delta",)
    """The extensions of DuckDB that read the view."""

    def __init__(self, schema: TableSchema, folder: Path, **lake: Any) -> None:
        """Create the table. `lake` are further settings of the lake."""
        self._settings = config.load(lake={"path": str(folder / "lake"), "cache": str(folder / "cache"), **lake})
        self._schema, self._columns = schema, columns_of(schema)
        self._table = create_table(self._settings, schema)
        self._database = duckdb.connect()
        for name in self.extensions:
            self._database.load_extension(_extension(name))

    @property
    def second(self) -> int:
        """The second at which expiry was evaluated for the last batch of events."""
        return self._position().batch.as_of // 1_000_000

    def load(self, first: Path) -> None:
        """Load the first rows, and compute their events and the view."""
        with pq.ParquetFile(first) as file:
            parts = (pa.Table.from_batches([part]) for part in file.iter_batches())
            add(self._table, self._schema, (self._changes(part) for part in parts), 1)
        fold(self._table)
        stream.extend(self._table)
        show(self._settings, self._table)

    def apply(self, batch: Batch) -> tuple[Steps, pa.Table]:
        """Load a batch, and run all steps."""
        add(self._table, self._schema, [self._changes(batch.rows)], batch.number)
        since = self._position().batch.sequence + 1
        start = time.process_time()
        events = find_events(self._table, since)
        spent = {"events": time.process_time() - start}
        steps = {
            "fold": lambda: fold(self._table),
            "compaction": lambda: compact(self._table),
            "view": lambda: show(self._settings, self._table),
        }
        for name, step in steps.items():
            start = time.process_time()
            step()
            spent[name] = time.process_time() - start
        # Older versions of a view take gigabytes.
        retention.vacuum(self._table, 0)
        return spent, pa.concat_tables([self._images(events, side) for side in ("before", "after")])

    def drop_tombstones(self, horizon: int) -> None:
        """Drop tombstones from before a time (microseconds)."""
        assert state.drop_tombstones(self._table, horizon)

    def rows(self) -> pa.Table:
        """Return the rows of the view, as DuckDB reads it."""
        query = f"SELECT 'rows' AS side, {', '.join(self._columns)} FROM {self._scan()}"
        return self._database.sql(query).to_arrow_table()

    def _scan(self) -> str:
        return f"delta_scan('{self._table.view.storage.address}')"

    def close(self) -> None:
        """Close the reader."""
        self._database.close()

    def _position(self) -> Position:
        position = ROW_EVENTS.position(self._table.row_events.load())
        assert position is not None
        return position

    def _changes(self, rows: pa.Table) -> pa.RecordBatch:
        times = rows["time"].to_numpy()
        if rows["gone"][0].as_py():
            return deletions(self._schema, rows, times)
        expiry = rows["expiry"][0].as_py()
        return writes(self._schema, rows, times, expiry=None if expiry is None else (_TTL, expiry))

    def _images(self, events: pa.Table, side: str) -> pa.Table:
        images = events[side].combine_chunks()
        found = pa.Table.from_struct_array(images.filter(pc.is_valid(images)))
        return found.select(self._columns).add_column(0, "side", pa.repeat(side, found.num_rows))


class WithIceberg(Writetime):
    """The same with Iceberg tables; its rows are those of the Iceberg table."""

    extensions = ("avro", "iceberg")

    def __init__(self, schema: TableSchema, folder: Path) -> None:
        super().__init__(schema, folder, iceberg=True)

    def _scan(self) -> str:
        storage = self._table.view.storage
        return f"iceberg_scan('{storage.address}/{metadata_name(newest(storage))}')"


def _extension(name: str) -> str:
    """Return the path of an extension of DuckDB."""
    package = f"duckdb_extension_{name}"
    try:
        found = importlib.import_module(package)
    except ImportError:
        raise Unavailable(f"it needs `pip install {package.replace('_', '-')}=={duckdb.__version__}`") from None
    return str(next(Path(str(found.__file__)).parent.rglob(f"{name}.duckdb_extension")))
