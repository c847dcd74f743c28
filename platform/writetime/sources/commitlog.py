"""The data source `commitlog`: changes of one table from a node's commit log segments, in batches or as a stream.

    spark.dataSource.register(CommitLogSource)
    stream = spark.readStream.format("commitlog").option("schema", CQL).option("table", "shop.orders")
    stream.load("/var/lib/cassandra/cdc_raw")

Options: `schema` (CQL text, or a file with it, of one table or more, each `WITH ID = ...`), `table` (the one to read,
as keyspace.table, if there are several), `fields` (those to read, separated by commas, or parts of them, as
`amount.value`), `node`, `on_unknown_table` (`count`, `fail`, `skip`), `torn_tail` (`fail`, `stop`), `on_corrupt`
(`fail`, or `skip-file`: leave out the rest of a segment), `segments_per_batch` (of a stream; all segments by default).
Skipped mutations are logged.

Mutations that write to tables without a schema are counted. If a mutation also writes to the table after such a write,
that part cannot be read: this is an error, unless `on_unknown_table` is `skip`; see `CommitLogReader`.

A stream follows the segments that have a `_cdc.idx`; those in a node's `cdc_raw` have one from their first synced
change on. A batch also reads the others. The data source deletes no segments. If a segment was deleted before it was
read to its end, that is an error, because this stream has lost its changes.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.schema.table import TableSchema
from writetime.sources.schemas import Selection, option_choice, option_count, option_fields, option_schemas
from writetime.sources.worker_end import end_quietly
from writetime.storage.commitlog import CommitLogReader, SegmentReport
from writetime.storage.file_errors import MissingFile
from writetime.storage.segment import END, Segment, find_segments, trusted

log = logging.getLogger(__name__)

_POLICIES = {
    "on_unknown_table": ("count", "fail", "skip"),
    "torn_tail": ("fail", "stop"),
    "on_corrupt": ("fail", "skip-file"),
}


@dataclass
class SegmentPart(InputPartition):
    """A segment from one offset to another."""

    segment: Segment
    start: int
    until: int


# The progress of a stream: `segment`, the `position` in it (None for its end), and `since`, the segments passed on the
# way.
Offset = dict[str, Any]


class CommitLogSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "commitlog"

    def schema(self) -> StructType:
        """The fields of the table's changes."""
        schemas = option_schemas(_required(self.options, "schema"))
        return Selection.of(_table(schemas, self.options), option_fields(self.options)).spark()

    def reader(self, schema: StructType) -> "CommitLogBatchReader":
        """Return a reader of all data that the segments hold now."""
        return CommitLogBatchReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> "CommitLogStreamReader":
        """Return a reader that follows the segments."""
        return CommitLogStreamReader(dict(self.options), schema)


def _required(options: Any, *names: str) -> Any:
    for name in names:
        if name not in options:
            raise WritetimeError(f"the data source commitlog needs the option {name}")
    return options


def _table(schemas: Sequence[TableSchema], options: Any) -> TableSchema:
    wanted = options.get("table")
    found = [s for s in schemas if wanted in (None, s.full_name)]
    if len(found) != 1:
        raise WritetimeError(f"the option table must name one of {', '.join(s.full_name for s in schemas)}")
    return found[0]


class _Reader:
    """Reads a segment as a task, by the options."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = {key.lower(): value for key, value in options.items()}
        _required(self._options, "schema", "path")
        self._selection = Selection.given(_table(option_schemas(self._options), self._options), schema)
        self._segments_per_batch = option_count(self._options, "segments_per_batch")
        self._policies = {name: option_choice(self._options, name, choices) for name, choices in _POLICIES.items()}

    def _trusted(self) -> list[tuple[Segment, int | None]]:
        return list(trusted(find_segments(self._options["path"])))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        end_quietly()
        if not isinstance(partition, SegmentPart):
            return  # Spark adds its own partition if there is none.
        schemas = option_schemas(self._options)
        name = _table(schemas, self._options).full_name
        reader = CommitLogReader(schemas, [name], fields=self._selection.schema.names, **self._policies)
        report = SegmentReport()
        path, node = partition.segment.path, self._options.get("node")
        parts = reader.read(partition.segment, start=partition.start, until=partition.until, report=report, node=node)
        for _, batch in parts:
            yield self._selection.cut(batch)
        for skipped in report.skipped:
            log.warning("left out: %s", skipped)
        if tables := report.unknown_tables:
            counted = pluralize(tables.total(), "mutation"), pluralize(len(tables), "table")
            log.warning("%s: %s to %s without a schema", path, *counted)
        if lost := report.hiding.total():
            log.warning("%s: changes of %s after these writes are lost in %s", path, name, pluralize(lost, "mutation"))
        if report.torn_at is not None:
            log.warning("%s ends at offset %d in an unfinished write", path, report.torn_at)


class CommitLogBatchReader(_Reader, DataSourceReader):
    """Reads all segments."""

    def partitions(self) -> list[SegmentPart]:
        """Return the segments."""
        return [SegmentPart(segment, 0, END if until is None else until) for segment, until in self._trusted()]


class CommitLogStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the segments of a folder, by the offsets of `Offset`."""

    _available: list[tuple[Segment, int]] | None = None

    def initialOffset(self) -> Offset:
        """Start with the oldest segment."""
        return {"segment": 0, "position": None, "since": []}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Read as much as the option `segments_per_batch` allows."""
        return ReadAllAvailable() if self._segments_per_batch is None else ReadMaxFiles(self._segments_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the offsets up to which segments may be read now: a node that continues to write would keep such a run
        from ending.
        """
        self._available = self._indexed()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the offset up to which a batch may read: the trusted offset of the newest segment, or of the last one
        within the limit. If the stream's segment was deleted before its end was read, that is a MissingFile.
        """
        self._unread(start)
        found = self._available if self._available is not None else self._indexed()
        unfinished = start["position"] is not None
        ahead = [s for s in found if s[0].id > start["segment"] or (s[0].id == start["segment"] and unfinished)]
        if isinstance(limit, ReadMaxFiles):
            ahead = ahead[: limit.max_files]
        if not ahead:
            return start
        last, until = ahead[-1]
        # A node that rewrites `_cdc.idx` may leave it empty for a moment.
        if last.id == start["segment"] and until <= (start["position"] or 0):
            return start
        since = [segment.id for segment, _ in ahead[:-1] if segment.id != start["segment"]]
        return {"segment": last.id, "position": None if until == END else until, "since": since}

    def partitions(self, start: Offset, end: Offset) -> list[SegmentPart]:
        """Return the parts of the segments between two offsets. A segment that was deleted before is a MissingFile."""
        parts: list[SegmentPart] = []
        position = END if end["position"] is None else end["position"]
        same = start["segment"] == end["segment"]
        if (segment := self._unread(start)) is not None:
            parts.append(SegmentPart(segment, start["position"] or 0, position if same else END))
        parts += [SegmentPart(self._segment(i), 0, END) for i in end["since"]]
        if not same:
            parts.append(SegmentPart(self._segment(end["segment"]), 0, position))
        return parts

    def _indexed(self) -> list[tuple[Segment, int]]:
        return [(segment, until) for segment, until in self._trusted() if until is not None]

    def _unread(self, start: Offset) -> Segment | None:
        """Return the segment of an offset, if the offset is not at its end."""
        return None if start["position"] is None else self._segment(start["segment"])

    def _segment(self, segment_id: int) -> Segment:
        folder = self._options["path"]
        for segment in find_segments(folder):
            if segment.id == segment_id:
                return segment
        raise MissingFile(
            f"segment {segment_id} (CommitLog-*-{segment_id}.log) of {folder} was deleted before this stream had read "
            "it to its end: put it back, or start again with another checkpoint and read the tables' SSTables for "
            "the lost changes"
        )
