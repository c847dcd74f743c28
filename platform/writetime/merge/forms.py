"""Chooses the form of a row's clustering key, if equal keys may have several forms.

Decimals such as 1.0 and 1 are equal, and so are all forms of not-a-number, so both name the same row. A state keeps the
form of the change that was written last. This is the change with the greatest write time of any part. At equal times,
deletions come after cells, and are ordered by deletion time. So the form does not come from data that a later merge
deletes first.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from writetime.changes.model import field_name
from writetime.core.arrow import numbers, one_chunk, pc
from writetime.merge.columns import dropped_times
from writetime.merge.counters import newest_shards
from writetime.merge.order import Order
from writetime.merge.precedence import NEVER, Times, cell_times, deletion_times, marker_times
from writetime.merge.value_order import has_forms, serialised_row
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, Native, is_complex


def with_newest_forms(order: Order, changes: pa.Table, schema: TableSchema) -> Order:
    """Make the change that was written last the head of each group of rows."""
    if not any(has_forms(c.type) for c in schema.clustering):
        return order
    newest = _Newest(len(changes))
    newest.add(marker_times(one_chunk(changes["marker"])))
    newest.add(deletion_times(one_chunk(changes["tombstone"])), deletion=True)
    dropped = dropped_times(schema)
    for column in schema.static + schema.regular:
        newest.add_column(one_chunk(changes[field_name(column)]), column.type, dropped[column.name])
    count = len(changes)
    zeros = np.zeros(count, np.int8), np.zeros(count, np.int32)
    times = Times(newest.write_time > NEVER, newest.write_time, zeros[0], newest.deletion_time, zeros[1])
    clustering = [one_chunk(changes[field_name(c)]) for c in schema.clustering]

    def decide(tied: np.ndarray) -> pa.Array:
        indices = pa.array(tied)
        return serialised_row([array.take(indices) for array in clustering], [c.type for c in schema.clustering])

    best = times.latest(order.group[:count], order.groups, decide)
    # The bounds of range tombstones have only one form.
    is_change = (order.head < count) & (best >= 0)
    return replace(order, head=np.where(is_change, best, order.head))


class _Newest:
    """The greatest write time of each change, and its deletion time if it is the write time of a deletion."""

    def __init__(self, count: int) -> None:
        self.write_time = np.full(count, NEVER)
        self.deletion_time = np.full(count, NEVER)

    def add(self, times: Times, *, deletion: bool = False) -> None:
        write_time = np.where(times.present, times.write_time, NEVER)
        deletion_time = np.where(times.present & deletion, times.deletion_time, NEVER)
        later = (write_time > self.write_time) | (
            (write_time == self.write_time) & (deletion_time > self.deletion_time)
        )
        self.write_time = np.where(later, write_time, self.write_time)
        self.deletion_time = np.where(later, deletion_time, self.deletion_time)

    def add_column(self, column: pa.StructArray, cql_type: CqlType, dropped_at: int) -> None:
        if not is_complex(cql_type):
            self.add(cell_times(column, dropped_at))
            if cql_type == Native("counter"):
                self.add_times(newest_shards(column, dropped_at))
            return
        tombstones, parts = column.flatten()
        times = deletion_times(tombstones)
        self.add(replace(times, present=times.present & (times.write_time > dropped_at)), deletion=True)
        if not isinstance(cql_type, Collection):
            for cells in parts.flatten():
                self.add(cell_times(cells, dropped_at))
            return
        cells = cell_times(parts.flatten(), dropped_at)
        change = np.repeat(np.arange(len(parts)), numbers(pc.list_value_length(parts)))
        write_time = np.full(len(parts), NEVER)
        np.maximum.at(write_time, change, np.where(cells.present, cells.write_time, NEVER))
        self.add_times(write_time)

    def add_times(self, write_time: np.ndarray) -> None:
        zeros = np.zeros(len(write_time), np.int64)
        self.add(Times(write_time > NEVER, write_time, zeros, zeros, zeros))
