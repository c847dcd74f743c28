"""The data source `commitlog`: changes of one table from a node's commit log segments, in batches or as a stream.

    spark.dataSource.register(CommitLogSource)
    stream = spark.readStream.format("commitlog").option("schema", CQL).option("table", "shop.orders")
    stream.load("/var/lib/cassandra/cdc_raw")

Options: `schema` (CQL text, or a file with it, of all tables that the node writes, each `WITH ID = ...`), `table` (the
one to read, as keyspace.table), `fields`, `node`, `on_unknown_table` (`fail`, `skip`), `torn_tail` (`fail`, `stop`),
`segments_per_batch` (of a stream; all that there is by default). What was skipped is logged.

A stream's offset is the segment that was read last and how far. Segments are never deleted here. One that is gone
before
it was read is an error: its changes are lost to this stream, and no gap stays silent.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from writetime.errors import WritetimeError
from writetime.schema.table import TableSchema
from writetime.sources.schemas import option_fields, option_schemas, spark_schema
from writetime.storage.commitlog import CommitLogReader, SegmentReport
from writetime.storage.errors import Missing
from writetime.storage.segment import Segment, find_segments

log = logging.getLogger(__name__)


@dataclass
class Part(InputPartition):
    """A segment from one offset to another."""

    path: str
    start: int
    until: int | None


class CommitLogSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "commitlog"

    def schema(self) -> StructType:
        """The fields of the table's changes."""
        schemas = option_schemas(_required(self.options, "schema"))
        return spark_schema(_table(schemas, self.options), option_fields(self.options))

    def reader(self, schema: StructType) -> "CommitLogBatchReader":
        """Return a reader of all that the segments hold now."""
        return CommitLogBatchReader(_Settings(dict(self.options), schema.names))

    def streamReader(self, schema: StructType) -> "CommitLogStreamReader":
        """Return a reader that follows the segments."""
        return CommitLogStreamReader(_Settings(dict(self.options), schema.names))


def _required(options: Any, *names: str) -> Any:
    for name in names:
        if name not in options:
            raise WritetimeError(f"the data source commitlog needs the option {name}")
    return options


def _table(schemas: Sequence[TableSchema], options: Any) -> TableSchema:
    wanted = options.get("table")
    found = [s for s in schemas if wanted in (None, s.full_name)]
    if len(found) != 1:
        raise WritetimeError(f"the option table has to name one of {', '.join(s.full_name for s in schemas)}")
    return found[0]


class _Settings:
    """What a reader was asked for, and how it reads one part."""

    def __init__(self, options: dict[str, str], fields: list[str]) -> None:
        self.options = {key.lower(): value for key, value in options.items()}
        _required(self.options, "schema", "path")
        self._fields = fields

    def segments(self) -> list[Segment]:
        return find_segments(self.options["path"])

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        schemas = option_schemas(self.options)
        reader = CommitLogReader(
            schemas,
            [_table(schemas, self.options).full_name],
            fields=self._fields,
            on_unknown_table=cast(Any, self.options.get("on_unknown_table", "fail")),
            torn_tail=cast(Any, self.options.get("torn_tail", "fail")),
        )
        (segment,) = find_segments(part.path)
        report = SegmentReport()
        node = self.options.get("node")
        for _, batch in reader.read(segment, start=part.start, until=part.until, report=report, node=node):
            yield batch
        for table, count in report.unknown_tables.items():
            log.warning("%s: %d mutations not read from the write to unknown table %s on", part.path, count, table)
        if report.torn_at is not None:
            log.warning("%s ends at offset %d in a mutation that was not finished", part.path, report.torn_at)


class CommitLogBatchReader(DataSourceReader):
    """Reads each segment as a task."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        """Return the segments."""
        return [Part(segment.path, 0, None) for segment in self._settings.segments()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one segment."""
        return self._settings.read(cast(Part, partition))


class CommitLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the segments of a folder; an offset is `{"segment": id, "position": p}`, all before which was read."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings

    def initialOffset(self) -> dict[str, int]:
        """Start with the oldest segment."""
        return {"segment": 0, "position": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Read what the option `segments_per_batch` allows."""
        most = self._settings.options.get("segments_per_batch")
        return ReadAllAvailable() if most is None else ReadMaxFiles(int(most))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return how far may be read: to the trusted offset of the newest segment, or of the last within the limit."""
        ahead = [s for s in self._settings.segments() if s.id >= start["segment"]]
        if isinstance(limit, ReadMaxFiles):
            ahead = ahead[: limit.max_files]
        if not ahead:
            return start
        last = ahead[-1]
        position = _trusted(last)
        if last.id == start["segment"]:
            position = max(position, start["position"])
        return {"segment": last.id, "position": position}

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing to prepare: offsets are taken from the folder as it is."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the parts of the segments between two offsets."""
        parts: list[InputPartition] = []
        segments = {s.id: s for s in self._settings.segments()}
        for offset in (start, end):
            unread = offset is end or offset["position"] < _end_of(segments, offset["segment"])
            if offset["segment"] and offset["segment"] not in segments and unread:
                raise Missing(
                    f"segment {offset['segment']} of {self._settings.options['path']} is gone before it was read"
                )
        for segment in segments.values():
            if start["segment"] <= segment.id <= end["segment"]:
                first = start["position"] if segment.id == start["segment"] else 0
                until = end["position"] if segment.id == end["segment"] else None
                if until is None or first < until:
                    parts.append(Part(segment.path, first, until))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part."""
        return self._settings.read(cast(Part, partition))


def _trusted(segment: Segment) -> int:
    """The offset up to which a segment may be read: what `_cdc.idx` says, else the end of its last section."""
    index = segment.cdc_index()
    if index is not None:
        return index.offset
    return max((section.offset + len(section.data) for section in segment.sections()), default=0)


def _end_of(segments: dict[int, Segment], segment_id: int) -> int:
    return _trusted(segments[segment_id]) if segment_id in segments else 0
