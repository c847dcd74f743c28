"""Applies row events to a dictionary, like a consumer."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from tests.support.lake_answers import view_rows
from writetime.core.arrow import pc
from writetime.delta.parquet import read_file
from writetime.lake.projection import ROW_EVENTS
from writetime.lake.table import LakeTable
from writetime.row_events.events import event_schema
from writetime.row_events.stream_files import batch_files

Place = tuple[int, bytes, bytes]
Image = dict[str, Any]


def images(column: pa.ChunkedArray) -> list[Image | None]:
    """Rows as plain values."""
    structs = column.combine_chunks()
    rows = view_rows([pa.Table.from_struct_array(structs)])
    return [row if valid else None for row, valid in zip(rows, structs.is_valid().to_pylist(), strict=True)]


def apply(
    events: Iterable[pa.Table], rows: dict[Place, Image] | None = None, *, has_dropped: bool = False
) -> dict[Place, Image]:
    """Apply events to rows by their places; each before image has to be the row that is there. The images of an event
    differ, unless only in columns that have been dropped since.
    """
    rows = {} if rows is None else rows
    for table in events:
        columns = [table[name].to_pylist() for name in ("kind", "token", "key", "position")]
        for kind, *at, before, after in zip(*columns, images(table["before"]), images(table["after"]), strict=True):
            place = (at[0], at[1], at[2])
            assert rows.get(place) == before, place
            assert has_dropped or before != after
            assert kind == {(True, False): "CREATE", (False, False): "UPDATE"}.get(
                (before is None, after is None), "DELETE"
            )
            if after is None:
                del rows[place]
            else:
                rows[place] = after
    return rows


class Consumer:
    """Follows the stream of a table while its schema changes."""

    def __init__(self) -> None:
        self.rows: dict[Place, Image] = {}
        self.event_ids: list[str] = []
        self._sequence = 0

    def follow(self, table: LakeTable) -> None:
        """Apply the batch that is new; call it after each."""
        stream = table.row_events.load()
        position = ROW_EVENTS.position(stream)
        if position is None:
            return
        schema = table.schema(table.changes.load(position.changes.version))
        events = event_schema(schema)
        # Rows of events from before a change of the schema have the fields from before.
        labels = {c.label for c in schema.columns}
        fields = [field for field in events.field("after").type if field.name in labels]
        for place, row in self.rows.items():
            self.rows[place] = {field.name: _grown(row.get(field.name), field.type) for field in fields}
        found = [file for sequence, file in batch_files(stream) if sequence > self._sequence]
        read = [read_file(table.row_events.storage, file.path, events) for file in found]
        # A file may have earlier batches, too.
        parts = [part.filter(pc.greater(part["sequence"], self._sequence)) for part in read]
        self.event_ids += [event_id for part in parts for event_id in part["event_id"].to_pylist()]
        apply(parts, self.rows)
        self._sequence = position.batch.sequence


def _grown(value: Any, arrow: pa.DataType) -> Any:
    """A value as a type has it that may have got fields since."""
    if value is None:
        return None
    if pa.types.is_struct(arrow):
        values = value + [None] * (arrow.num_fields - len(value))
        return [_grown(item, arrow.field(i).type) for i, item in enumerate(values)]
    if pa.types.is_map(arrow):
        return [[_grown(key, arrow.key_type), _grown(item, arrow.item_type)] for key, item in value]
    if pa.types.is_list(arrow):
        return [_grown(item, arrow.value_type) for item in value]
    return value


def in_order(rows: dict[Place, Image]) -> list[Image]:
    """The rows in the order of the database."""
    return [rows[place] for place in sorted(rows)]


SECOND = 1_000_000


def events(table: LakeTable) -> Iterator[pa.Table]:
    """The events of the stream, batch by batch."""
    rows = table.row_events
    for _, file in batch_files(rows.load()):
        yield read_file(rows.storage, file.path, event_schema(table.schema()))


def replayed(table: LakeTable, *, has_dropped: bool = False) -> list[dict[str, Any]]:
    return in_order(apply(events(table), has_dropped=has_dropped))
