"""The data source `sstable`: SSTables of a table, as changes.

    spark.dataSource.register(SSTableSource)
    spark.read.format("sstable").load("/backups/shop/orders-5a1c.../snapshots/nightly")

Options: `schema` (CQL text or a file with it; else the snapshot's `schema.cql`, else the columns in the files'
headers), `fields` (those to read, separated by commas, or parts of them, as `amount.value`; all by default),
`on_corrupt` (`fail`, `skip-partition`, `skip-file`), `split_bytes` (uncompressed bytes per task, 64 MiB by default),
`node` (the value of `origin.node`), `first_token` and `last_token` (both included), or `partition_key` (a JSON object,
`{"user_id": 7}`): only the parts of the files that can hold them are read.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.lake.labels import newly_labelled
from writetime.schema.table import TableSchema
from writetime.sources.schemas import (
    Selection,
    option_choice,
    option_count,
    option_fields,
    option_schemas,
    option_tokens,
)
from writetime.sources.worker_end import end_quietly
from writetime.storage.batch import Origin
from writetime.storage.infer import infer_schema
from writetime.storage.locations import Location, find_sstables
from writetime.storage.split import Split
from writetime.storage.sstable import OnCorrupt, ScanReport, SSTable

log = logging.getLogger(__name__)

SPLIT_BYTES = 64 << 20


@dataclass
class SSTableSplit(InputPartition):
    """A split of one SSTable; `file` is its data file's name, with the same start as the user's path."""

    location: Location
    split: Split
    file: str


class SSTableSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "sstable"

    def schema(self) -> StructType:
        """The fields of the table's changes."""
        return Selection.of(self._table(), option_fields(self.options)).spark()

    def reader(self, schema: StructType) -> "SSTableReader":
        """Return a reader of the fields of this schema, which may be one that was given to Spark."""
        table = self._table()
        return SSTableReader(dict(self.options), table, Selection.given(table, schema))

    def _table(self) -> TableSchema:
        if "schema" in self.options:
            schemas = option_schemas(self.options)
            if len(schemas) != 1:
                raise WritetimeError(f"the option schema holds {pluralize(len(schemas), 'table')}; one was expected")
            return schemas[0]
        return newly_labelled(infer_schema(list(find_sstables(_path(self.options)))))


def _path(options: Any) -> str:
    if "path" not in options:
        raise WritetimeError("the data source sstable needs a path: load(PATH)")
    return options["path"]


class SSTableReader(DataSourceReader):
    """Reads splits of SSTables, in batches."""

    def __init__(self, options: dict[str, str], table: TableSchema, selection: Selection) -> None:
        self._options = {key.lower(): value for key, value in options.items()}
        self._table = table
        self._selection = selection
        self._tokens = option_tokens(self._options, table)
        self._on_corrupt: OnCorrupt = option_choice(self._options, "on_corrupt", get_args(OnCorrupt))
        self._split_bytes = option_count(self._options, "split_bytes") or SPLIT_BYTES
        self._captured_at = datetime.now(UTC)

    def partitions(self) -> list[InputPartition]:
        """Return the splits of all SSTables at the path."""
        path = _path(self._options)
        scheme = path.split("://")[0] + "://" if "://" in path else ""
        return [
            SSTableSplit(location, split, scheme + location.path("Data.db"))
            for location in find_sstables(path)
            for split in SSTable(location, self._table).splits(self._split_bytes, self._tokens)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split."""
        end_quietly()
        if not isinstance(partition, SSTableSplit):
            return  # Spark adds its own partition if there is none.
        report = ScanReport()
        batches = SSTable(partition.location, self._table).scan(
            self._selection.schema.names,
            split=partition.split,
            tokens=self._tokens,
            on_corrupt=self._on_corrupt,
            report=report,
            origin=Origin("sstable", partition.file, self._captured_at, self._options.get("node")),
        )
        yield from map(self._selection.cut, batches)
        for skipped in report.skipped:
            log.warning("left out: %s", skipped)
