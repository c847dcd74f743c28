"""The expectations of the lake's tables, and the data frames that are checked against them."""

from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from writetime.changes.model import KINDS, change_schema, field_name, udt_fields
from writetime.clients.great_expectations import gxe
from writetime.delta.buckets import ALL
from writetime.delta.parquet import PARTITION, SORTED_BY, WrittenFile
from writetime.delta.storage import Storage
from writetime.lake.table import LakeTable, view_schema
from writetime.row_events.changed_rows import AFTER, BEFORE, EVENTS
from writetime.row_events.events import KINDS as EVENT_KINDS
from writetime.row_events.events import event_schema
from writetime.schema.table import TableSchema
from writetime.schema.types import Udt, is_complex
from writetime.view.placed_rows import THERE
from writetime.view.refreshing import MARKED

_DAY = 86_400_000_000


def of_changes() -> "list[gxe.Expectation]":
    """Return the expectations of a snapshot's changes, as `changes` returns them."""
    return [*_changes(), *_in_place()]


def of_levels() -> "list[gxe.Expectation]":
    """Return the expectations of a state's levels, as `levels` returns them."""
    return [
        *_changes(),
        *_in_place(),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["level", "key", "position", "kind"]),
    ]


def of_write_times() -> "list[gxe.Expectation]":
    """Return the expectation that write times are in the past: a future one wins over every deletion until then."""
    tomorrow = int(datetime.now(UTC).timestamp() * 1_000_000) + _DAY
    return [gxe.ExpectColumnValuesToBeBetween(column="last_write_time", max_value=tomorrow)]


def of_view(schema: TableSchema, counts: Mapping[str, int], unfit: Container[str] = ()) -> "list[gxe.Expectation]":
    """Return the expectations of the new rows of a view. `counts` are those of the refresh, and `unfit` are columns
    with timestamps that do not fit.
    """
    partition = [c.name for c in schema.partition_key]
    keys = [*partition, *(c.name for c in schema.clustering)]
    found: list[gxe.Expectation] = [gxe.ExpectTableRowCountToEqual(value=rows_of_view(counts))]
    found += [gxe.ExpectColumnValuesToNotBeNull(column=name) for name in partition if name not in unfit]
    if not any(name in unfit for name in keys):
        found.append(gxe.ExpectCompoundColumnsToBeUnique(column_list=[PARTITION, *keys]))
    return found


def rows_of_view(counts: Mapping[str, int]) -> int:
    """Return the number of new rows after which a view has the rows of its state: those by which the state's live rows
    have become more, and those that replace marked rows, without those that the view already has.
    """
    return counts[AFTER] - counts[BEFORE] + counts[MARKED] - counts[THERE]


def whole_view(session: SparkSession, table: LakeTable) -> DataFrame:
    """Return all rows of the view."""
    return session.read.format("delta").load(table.view.storage.address)


def view(session: SparkSession, table: LakeTable, files: Sequence[WrittenFile]) -> DataFrame:
    """Return the rows of files of the view. The files need not be committed."""
    return _staged(session, table.view.storage, view_schema(table.schema()), files)


def of_events(counts: Mapping[str, int]) -> "list[gxe.Expectation]":
    """Return the expectations of a batch of row events, as `events` returns them. `counts` are those of the batch: a
    row of the state that is new has an event that creates it, and one that is gone an event that deletes it.
    """
    growth = counts[AFTER] - counts[BEFORE]
    return [
        gxe.ExpectTableRowCountToEqual(value=counts[EVENTS]),
        gxe.ExpectColumnSumToBeBetween(column="rows_created", min_value=growth, max_value=growth),
        *(gxe.ExpectColumnValuesToNotBeNull(column=name) for name in ("event_id", "key", "position")),
        gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=list(EVENT_KINDS)),
        gxe.ExpectColumnValuesToBeUnique(column="event_id"),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["key", "position"]),
        gxe.ExpectColumnValuesToBeInSet(column="images_are_of_the_kind", value_set=[True]),
    ]


def changes(session: SparkSession, table: LakeTable, files: Sequence[WrittenFile]) -> DataFrame:
    """Return the data frame to check for files of changes. The files need not be committed."""
    frame = _staged(session, table.changes.storage, change_schema(table.schema()), files)
    return frame.select("kind", *SORTED_BY, *_places(table))


def levels(session: SparkSession, table: LakeTable, files: Sequence[WrittenFile]) -> DataFrame:
    """Return the data frame to check for levels of the state. The levels need not be committed."""
    # A file lacks the fields that are null in all of its rows.
    frame = _staged(session, table.state.storage, change_schema(table.schema()), files)
    return frame.select(
        "kind",
        *SORTED_BY,
        F.col("_metadata.file_path").alias("level"),
        *_places(table),
        F.greatest(*_write_times(table.schema())).alias("last_write_time"),
    )


def events(session: SparkSession, table: LakeTable, files: Sequence[WrittenFile]) -> DataFrame:
    """Return the data frame to check for files of row events. The files need not be committed."""
    frame = _staged(session, table.row_events.storage, event_schema(table.schema()), files)
    before, after, kind = F.col("before").isNotNull(), F.col("after").isNotNull(), F.col("kind")
    right = F.when(kind == "CREATE", ~before & after).when(kind == "UPDATE", before & after).otherwise(before & ~after)
    created = F.when(kind == "CREATE", 1).when(kind == "DELETE", -1).otherwise(0)
    return frame.select(
        "event_id",
        "kind",
        "key",
        "position",
        right.alias("images_are_of_the_kind"),
        created.alias("rows_created"),
    )


def _staged(session: SparkSession, storage: Storage, schema: pa.Schema, files: Sequence[WrittenFile]) -> DataFrame:
    whole = from_arrow_schema(pa.schema([*schema, pa.field(PARTITION, pa.int32())]))
    if not files:
        return session.createDataFrame([], whole)
    reader = session.read.schema(whole).option("basePath", storage.address)
    return reader.parquet(*(f"{storage.address}/{file.path}" for file in files))


def _changes() -> "list[gxe.Expectation]":
    return [
        gxe.ExpectColumnValuesToNotBeNull(column="key"),
        gxe.ExpectColumnValuesToNotBeNull(column="position"),
        gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=list(KINDS)),
    ]


def _in_place() -> "list[gxe.Expectation]":
    return [
        gxe.ExpectColumnValuesToNotBeNull(column="token"),
        *(gxe.ExpectColumnValuesToBeInSet(column=name, value_set=[True]) for name in ("in_order", "in_its_bucket")),
    ]


def _places(table: LakeTable) -> list[Column]:
    """Return two columns: whether each row follows the one before it, and whether it is in the bucket of its token or
    in a file of all buckets.
    """
    place = F.struct(*SORTED_BY)
    before = F.lag(place).over(Window.partitionBy("_metadata.file_path").orderBy("_metadata.row_index"))
    bits = table.buckets.bit_length() - 1
    # The bucket of a token is its top bits, where tokens are counted from the smallest.
    bucket = F.shiftrightunsigned(F.col("token").bitwiseXOR(F.lit(-(1 << 63))), 64 - bits) if bits else F.lit(0)
    in_order, in_its_bucket = F.coalesce(before <= place, F.lit(True)), F.col(PARTITION).isin(bucket, ALL)
    return [in_order.alias("in_order"), in_its_bucket.alias("in_its_bucket")]


def _write_times(schema: TableSchema) -> list[Column]:
    """Return the newest write time of each part of a change."""
    times = [F.col("marker.write_time"), F.col("tombstone.write_time")]
    for column in schema.static + schema.regular:
        cell = F.col("`" + field_name(column).replace("`", "``") + "`")
        if not is_complex(column.type):
            times.append(cell["write_time"])
            continue
        times.append(cell["tombstone"]["write_time"])
        if isinstance(column.type, Udt):
            times += [cell["fields"][name]["write_time"] for name, _ in udt_fields(column.type)]
        else:
            times.append(F.array_max(cell["elements"]["write_time"]))
    return times
