"""The data source `scylla_cdc`: changes of one ScyllaDB table from its CDC log, in batches or as a stream.

    spark.dataSource.register(ScyllaCdcSource)
    spark.read.format("scylla_cdc").option("table", "shop.orders").load()
    spark.readStream.format("scylla_cdc").option("table", "shop.orders").load()

Options: `table` (keyspace.table, the base table), `from` (a time: write times before it are not read; by default the
start of the log), `to` (of a batch; by default, and at most, the end of the settled windows), `snapshot_at` (the start
time of the snapshot that closes a gap), `fields`, and every setting of the sections `[cassandra]` and `[scylla_cdc]` by
its name (`contact_points`, separated by commas, `port`, `window_seconds`, ...), instead of the value in the settings
file.

A stream reads windows of write times. It reads a window once all of its rows should have reached the log.
`docs/scylla-cdc.md` has the guarantees.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar, cast

import pyarrow as pa
from pydantic import ValidationError
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from writetime.changes.model import change_schema
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.instants import parse_instant
from writetime.core.settings_sources import faults
from writetime.lake.labels import newly_labelled
from writetime.schema.table import TableSchema
from writetime.scylla_cdc.offsets import (
    Offset,
    check,
    first_offset,
    interval,
    next_offset,
    pieces_between,
    shared_out,
    snapshot_of,
)
from writetime.scylla_cdc.pieces import StreamPiece
from writetime.scylla_cdc.source import CdcSource, EarlierTtl, open_source, until_fresh
from writetime.sources.schemas import Selection, option_fields
from writetime.sources.worker_end import end_quietly

log = logging.getLogger(__name__)

_Kind = TypeVar("_Kind", bound="_Reader")
_OPTIONS = {"table", "from", "to", "snapshot_at", "fields"}


@dataclass
class LogPart(InputPartition):
    """The part that one task reads. `start` is where the batch begins, without parts that are read again; `snapshot_at`
    is the start time of the snapshot that has the unreadable rows; `earlier_ttl` is as in `CdcSource.check_gap`.
    """

    pieces: list[StreamPiece]
    start: int
    snapshot_at: int | None
    earlier_ttl: EarlierTtl = field(default_factory=EarlierTtl)


class ScyllaCdcSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "scylla_cdc"

    def schema(self) -> StructType:
        """The fields of the table's changes."""
        return Selection.of(_Asked(self.options).current_schema(), option_fields(self.options)).spark()

    def reader(self, schema: StructType) -> "ScyllaCdcBatchReader":
        """Return a reader of the log's present rows."""
        return self._reading(ScyllaCdcBatchReader, schema)

    def streamReader(self, schema: StructType) -> "ScyllaCdcStreamReader":
        """Return a reader that follows the log."""
        return self._reading(ScyllaCdcStreamReader, schema)

    def _reading(self, kind: type[_Kind], schema: StructType) -> _Kind:
        asked = _Asked(self.options)
        table = asked.current_schema()
        return kind(asked, table, Selection.given(table, schema))


class _Asked:
    """The options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        options = {key.lower(): value for key, value in options.items()}
        if "." not in options.get("table", ""):
            raise WritetimeError("the data source scylla_cdc needs the option table: keyspace.table")
        self.table = options["table"]
        self.settings = _settings(options)
        self.start, self.end, self.snapshot_at = (
            parse_instant(options[name]) if name in options else None for name in ("from", "to", "snapshot_at")
        )

    def source(self) -> AbstractContextManager[CdcSource]:
        return open_source(self.settings, self.table)

    def current_schema(self) -> TableSchema:
        with self.source() as source:
            return newly_labelled(source.schema)


def _settings(options: Mapping[str, str]) -> Settings:
    settings = config.load()
    made = {}
    known = set(_OPTIONS)
    for name, section in (("cassandra", settings.cassandra), ("scylla_cdc", settings.scylla_cdc)):
        kind = type(section)
        known |= kind.model_fields.keys()
        own: dict[str, Any] = {key: value for key, value in options.items() if key in kind.model_fields}
        if "contact_points" in own:
            own["contact_points"] = [point.strip() for point in own["contact_points"].split(",")]
        try:
            made[name] = kind.model_validate(section.model_dump() | own)
        except ValidationError as e:
            raise WritetimeError(f"options of the data source scylla_cdc: {'; '.join(faults(e, kind))}") from None
    if unknown := sorted(options.keys() - known):
        raise WritetimeError(
            f"the data source scylla_cdc has no option {unknown[0]}; it has {', '.join(sorted(known))}"
        )
    return settings.model_copy(update=made)


class _Reader:
    """Reads some streams as a task."""

    def __init__(self, asked: _Asked, table: TableSchema, selection: Selection) -> None:
        self._asked = asked
        self._table = table
        self._selection = selection

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part. Its rows count only if neither the table nor the log's retained rows changed meanwhile."""
        end_quietly()
        part = cast(LogPart, partition)
        if not part.pieces:
            return
        with self._asked.source() as source:
            source.check_schema(self._table)
            names = dict(zip(change_schema(self._table).names, change_schema(source.schema).names, strict=True))
            wanted = self._selection.schema.names
            for batch in source.read(part.pieces, [names[n] for n in wanted], snapshot_at=part.snapshot_at):
                yield self._selection.cut(batch.rename_columns(wanted))
            source.check_schema(self._table)
            source.check_gap(part.start, part.snapshot_at, part.earlier_ttl)


class ScyllaCdcBatchReader(_Reader, DataSourceReader):
    """Reads the streams of a log over an interval of write times."""

    def partitions(self) -> list[LogPart]:
        """Distribute the streams. If the log does not have all requested writes, that is a LogGap, and if the end is
        not settled yet, a WritetimeError.
        """
        asked = self._asked
        with asked.source() as source:
            pieces = interval(source, asked.start, asked.end, asked.snapshot_at)
            start = min((piece.start for piece in pieces), default=0)
            # Spark adds its own part if there is none.
            return [
                LogPart(some, start, asked.snapshot_at) for some in shared_out(pieces, source.settings.tasks) or [[]]
            ]


class ScyllaCdcStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a log, by the offsets of `Offset`."""

    _available: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Start at the option `from`, or with the log's oldest rows."""
        with self._asked.source() as source:
            return asdict(first_offset(source, self._asked.start, self._asked.snapshot_at))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Read all settled windows, up to `batch_seconds`."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Record up to which time may be read: passing time would keep such a run from ending."""
        with self._asked.source() as source:
            self._available = source.settled()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset up to which a batch may read. If the next rows are not in the log, that is a LogGap."""
        del limit
        with self._asked.source() as source:
            settled = source.settled() if self._available is None else self._available
            return asdict(next_offset(source, Offset(**start), settled, self._asked.snapshot_at))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogPart]:
        """Return the parts between two offsets. If they are no longer in the log, that is a LogGap, and if the nodes
        lack a set of streams that `latestOffset` knew, a StaleSets.
        """
        return until_fresh(lambda: self._parts(Offset(**start), Offset(**end)))

    def _parts(self, first: Offset, last: Offset) -> list[LogPart]:
        with self._asked.source() as source:
            check(source, first, self._asked.snapshot_at)
            pieces = pieces_between(source, first, last)
            snapshot_at = snapshot_of(last, self._asked.snapshot_at)
            parts = shared_out(pieces, source.settings.tasks)
            return [LogPart(some, first.until, snapshot_at, first.earlier_ttl) for some in parts]
