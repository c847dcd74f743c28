"""The tables that a server wrote, and their rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from tests.storage import handmade
from tests.support.expected import plain, without_origin
from tests.support.format_server import FormatServer
from tests.support.generate import KEYSPACE
from writetime.schema.table import TableSchema
from writetime.storage.commitlog import CommitLogReader
from writetime.storage.locations import Location
from writetime.storage.segment import Segment, find_segments
from writetime.storage.sstable import SSTable


@dataclass
class Written:
    """The tables that one server wrote, the places of their SSTables, and the rows that the oracle reads in these."""

    version: str
    server: FormatServer
    schemas: list[TableSchema]
    all_schemas: list[TableSchema]
    sstables: dict[str, list[Location]]
    lines: dict[str, list[dict[str, Any]]]
    answers: handmade.Answers

    @cached_property
    def segment(self) -> Segment:
        """The segment of the commit log that holds the writes to the generated tables."""
        reader = CommitLogReader(self.all_schemas, [s.full_name for s in self.generated])
        segments = find_segments(str(self.server.cdc_raw))
        return max(segments, key=lambda s: sum(batch.num_rows for _, batch in reader.read(s)))

    @property
    def generated(self) -> list[TableSchema]:
        """The schemas of the generated tables, with their ids."""
        return [s for s in self.all_schemas if s.keyspace == KEYSPACE]

    def handmade(self, table: str) -> tuple[TableSchema, list[Location]]:
        """Return the schema and the SSTables of a table of `handmade`."""
        schema = next(s for s in self.all_schemas if (s.keyspace, s.name) == (handmade.KEYSPACE, table))
        return schema, self.sstables[f"{handmade.KEYSPACE}.{table}"]


def changes(location: Location, schema: TableSchema, **options: object) -> pa.Table:
    return without_origin(SSTable(location, schema).scan(**options), schema)  # type: ignore[arg-type]


def one_of_each(written: Written) -> list[tuple[TableSchema, Location]]:
    return [(schema, written.sstables[schema.name][0]) for schema in written.schemas if written.sstables[schema.name]]


def handmade_changes(written: Written, table: str) -> Iterator[dict[str, Any]]:
    """Return the changes of a table of `handmade`, one by one."""
    schema, locations = written.handmade(table)
    for location in locations:
        found = without_origin(SSTable(location, schema).scan(), schema)
        columns = {name: found[name].combine_chunks() for name in found.column_names}
        for i in range(found.num_rows):
            yield {name: plain(array[i]) for name, array in columns.items()}
