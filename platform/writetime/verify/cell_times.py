"""The write times and expiries of cells on both sides of a comparison, as more columns of rows.

CQL reports the rest of a TTL in whole seconds, by the clock of the node that coordinates the read. So an expiry in the
database is known up to the time that the read of its page took, a second, and the difference of the clocks.

Cassandra 5.0 also reports the times of collections and user-defined types that are not frozen (CASSANDRA-8877): a list
with an entry per element, in their order, or per field, null where the field is null. Other databases refuse this.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from writetime.core.arrow import mask_of, numbers, pc, take
from writetime.merge.live import cells_live
from writetime.schema.columnar import decode
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, is_complex, quote_name

CLOCKS_DIFFER_SECONDS = 60
"""How far clocks of machines may differ. An import cannot change an expiry by so little: it loses a TTL, lets it begin
again, or takes a wrong unit or column.
"""
Times = tuple[pa.Array, pa.Array]
"""The write times and the expiries of a column."""
_BIGINT, _INT = Native("bigint"), Native("int")
_NULL = pa.scalar(None, pa.int64())


@dataclass(frozen=True)
class TimedColumn:
    """A column of whose cells the database reports times. Rows have more columns with these names: the write time
    (microseconds), and the expiry (seconds since 1970; null without a TTL).
    """

    column: Column
    time: str
    expiry: str

    @property
    def selectors(self) -> tuple[str, str]:
        """The selectors of CQL for the write time and for the rest of the TTL."""
        name = quote_name(self.column.name)
        return f"writetime({name})", f"ttl({name})"

    def of(self, native: Native) -> CqlType:
        """Return the type of such a column, of numbers of one type."""
        return Collection("list", (native,), frozen=True) if is_complex(self.column.type) else native


def timed_columns(schema: TableSchema, *, of_parts: bool) -> list[TimedColumn]:
    """Return the columns of whose cells the database reports times: of parts of columns, too, if it does."""
    taken = {column.name for column in schema.columns}
    return [
        TimedColumn(c, _free_name(f"writetime({c.name})", taken), _free_name(f"expiry({c.name})", taken))
        for c in schema.static + schema.regular
        if c.type != Native("counter") and (of_parts or not is_complex(c.type))
    ]


def _free_name(name: str, taken: Container[str]) -> str:
    # A quoted name of a column may have any characters.
    return name if name not in taken else _free_name(f"{name}'", taken)


def timed_schema(schema: TableSchema, timed: Sequence[TimedColumn]) -> TableSchema:
    """Return a schema with the columns that rows with times have."""

    def with_times(columns: tuple[Column, ...]) -> tuple[Column, ...]:
        own = [(each.of(_BIGINT), each) for each in timed if each.column in columns]
        return (*columns, *(Column(name, kind) for kind, each in own for name in (each.time, each.expiry)))

    return replace(schema, static=with_times(schema.static), regular=with_times(schema.regular))


def of_database(timed: TimedColumn, times: pa.Array, ttls: pa.Array, read_at: np.ndarray) -> Times:
    """Return the write times and the expiries of a column, given the answers for its selectors, and for each row the
    time of its read (seconds).
    """
    rest = decode(ttls, timed.of(_INT))
    if not is_complex(timed.column.type):
        return decode(times, _BIGINT), pc.add(rest.cast(pa.int64()), pa.array(read_at))
    of_parts = np.repeat(read_at, numbers(pc.list_value_length(rest)))
    expiries = pc.add(rest.flatten().cast(pa.int64()), pa.array(of_parts))
    return decode(times, timed.of(_BIGINT)), pa.ListArray.from_arrays(rest.offsets, expiries, mask=rest.is_null())


def of_lake(entries: pa.StructArray, cql_type: CqlType, as_of: int) -> Times:
    """Return the write times and the expiries of a column, given its entries in a state, at a time (seconds)."""
    if not is_complex(cql_type):
        return _of_cells(entries, as_of)
    parts = entries.flatten()[1]
    if isinstance(cql_type, Collection):
        elements = parts.flatten()
        lives = cells_live(elements, as_of)
        row = np.repeat(np.arange(len(parts)), numbers(pc.list_value_length(parts)))[mask_of(lives)]
        counts = np.bincount(row, minlength=len(parts))
        found = _of_cells(elements.filter(lives), as_of)
    else:
        fields = parts.flatten()
        lives = np.array([mask_of(cells_live(cells, as_of)) for cells in fields])
        # Those of a row come one after the other.
        order = np.arange(len(parts) * len(fields)).reshape(len(fields), -1).T.ravel()
        counts = np.where(lives.any(axis=0), len(fields), 0)
        order = order[np.repeat(counts > 0, len(fields))]
        columns = zip(*(_of_cells(cells, as_of) for cells in fields), strict=True)
        found = [take(pa.concat_arrays(column), order) for column in columns]
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    times, expiries = (pa.ListArray.from_arrays(offsets, each, mask=pa.array(counts == 0)) for each in found)
    return times, expiries


def _of_cells(cells: pa.StructArray, as_of: int) -> Times:
    """Return the write times and the expiries of cells, null where one does not live."""
    lives = cells_live(cells, as_of)
    expires = pc.and_(lives, cells.field("ttl").is_valid())
    return pc.if_else(lives, cells.field("write_time"), _NULL), pc.if_else(expires, cells.field("deletion_time"), _NULL)


def newer(one: Times, other: Times, within: int) -> np.ndarray:
    """Return where a cell of one side replaces that of the other: it is written later, or at the same time with an
    expiry that is later by more than `within` (`Cells.resolveRegular`). Parts are compared where both sides have the
    same number of them.
    """
    (times, expiries), (other_times, other_expiries) = one, other
    if pa.types.is_list(times.type):
        counts, other_counts = (numbers(pc.list_value_length(each)) for each in (times, other_times))
        same = counts == other_counts
        parts, other_parts = (_parts(side, pa.array(same)) for side in (one, other))
        found = np.zeros(len(times), bool)
        found[np.repeat(np.flatnonzero(same), counts[same])[newer(parts, other_parts, within)]] = True
        return found
    later = pc.subtract(expiries.fill_null(0), other_expiries.fill_null(0))
    ties = pc.and_(pc.equal(times, other_times), pc.greater(later, within))
    return mask_of(pc.or_(pc.greater(times, other_times), ties).fill_null(False))


def _parts(side: Times, which: pa.Array) -> Times:
    times, expiries = side
    return times.filter(which).flatten(), expiries.filter(which).flatten()
