"""Chooses the form of a row's clustering key, if equal keys may have several forms.

Decimals such as 1.0 and 1 are equal, and so are all forms of not-a-number, so both name the same row. A state keeps the
form of the change that was written last. This is the change with the greatest write time of any part. At equal times,
deletions come after cells, and are ordered by deletion time. So the form does not come from data that a later merge
deletes first.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from writetime.changes.model import field_name
from writetime.core.arrow import numbers, one_chunk, pc
from writetime.merge.columns import dropped_times
from writetime.merge.counters import greatest, newest_shards
from writetime.merge.order import Order
from writetime.merge.precedence import NEVER, Times, cell_times, deletion_times, marker_times
from writetime.merge.tombstones import Deletion
from writetime.merge.value_order import has_forms, serialised_row
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, Native, is_complex


def with_newest_forms(order: Order, changes: pa.Table, schema: TableSchema) -> Order:
    """Make the change that was written last the head of each group of rows."""
    if not any(has_forms(c.type) for c in schema.clustering):
        return order
    count = len(changes)
    newest = Deletion.none(count)
    for written in _writes(changes, schema):
        newest = written.where(written.exceeds(newest), newest)
    rank, ttl = np.zeros(count, np.int8), np.zeros(count, np.int32)
    times = Times(newest.write_time > NEVER, newest.write_time, rank, newest.deletion_time, ttl)
    clustering = [one_chunk(changes[field_name(c)]) for c in schema.clustering]

    def decide(tied: np.ndarray) -> pa.Array:
        indices = pa.array(tied)
        return serialised_row([array.take(indices) for array in clustering], [c.type for c in schema.clustering])

    best = times.latest(order.group[:count], order.groups, decide)
    # The bounds of range tombstones have only one form.
    is_change = (order.head < count) & (best >= 0)
    return replace(order, head=np.where(is_change, best, order.head))


def _writes(changes: pa.Table, schema: TableSchema) -> Iterator[Deletion]:
    """Yield when each part of the changes was written. A part that is no deletion has no deletion time."""
    yield _written(marker_times(one_chunk(changes["marker"])))
    yield _deleted(deletion_times(one_chunk(changes["tombstone"])))
    dropped = dropped_times(schema)
    for column in schema.static + schema.regular:
        cells, dropped_at = one_chunk(changes[field_name(column)]), dropped[column.name]
        if not is_complex(column.type):
            yield _written(cell_times(cells, dropped_at))
            if column.type == Native("counter"):
                yield _without_deletion(newest_shards(cells, dropped_at))
            continue
        tombstones, parts = cells.flatten()
        times = deletion_times(tombstones)
        yield _deleted(replace(times, present=times.present & (times.write_time > dropped_at)))
        if isinstance(column.type, Collection):
            times = cell_times(parts.flatten(), dropped_at)
            change = np.repeat(np.arange(len(parts)), numbers(pc.list_value_length(parts)))
            write_time = np.where(times.present, times.write_time, NEVER)
            yield _without_deletion(greatest(change, write_time, len(parts), NEVER))
        else:
            for field in parts.flatten():
                yield _written(cell_times(field, dropped_at))


def _written(times: Times) -> Deletion:
    return _without_deletion(np.where(times.present, times.write_time, NEVER))


def _without_deletion(write_time: np.ndarray) -> Deletion:
    return Deletion(write_time, np.full(len(write_time), NEVER))


def _deleted(times: Times) -> Deletion:
    return Deletion(times.write_time, times.deletion_time).where(times.present, Deletion.none(len(times.present)))
