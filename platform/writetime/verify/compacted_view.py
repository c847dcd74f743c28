"""Compares the compacted view, as other engines read it, with its expected rows.

These are the rows of the state and the changes as of its last refresh. So a view that is refreshed rarely is behind,
and not wrong. delta-rs reads the view, with its deletion vectors. Rows are compared by their hashes, in groups. Both
sides are read in one pass, and only rows of groups that differ are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.core.extras import WhenUsed
from writetime.core.instants import instant_text
from writetime.core.outages import is_outage
from writetime.core.printing import json_value
from writetime.delta.versions import TableVersion
from writetime.lake.projection import CLOCKS_DIFFER, VIEW, Position, require_same_changes
from writetime.lake.state import folded_version
from writetime.lake.table import LakeTable, created_of, view_schema
from writetime.lake.views import BucketView, present_views, time_now

if TYPE_CHECKING:
    import deltalake
    import duckdb
    from deltalake import exceptions
else:
    deltalake, exceptions, duckdb = map(WhenUsed, ("deltalake", "deltalake.exceptions", "duckdb"))

_GROUPS = 1024
# The rows of each side that are compared one by one.
_ROWS_HELD = 100_000
_SHOWN = 20


@dataclass(frozen=True)
class WrongRow:
    """A row that one side has, and not the other: of the view, or expected."""

    view: dict[str, Any] | None
    expected: dict[str, Any] | None


@dataclass(frozen=True)
class CompactedView:
    """The number of rows of a compacted view, and of its expected rows, as of its last refresh (microseconds).

    `fault` is why it is not proven to have these rows; None if it is proven. `differences` are some rows that differ.
    """

    rows: int
    expected: int
    as_of: int
    fault: str | None = None
    differences: Sequence[WrongRow] = ()


def compare_view(table: LakeTable) -> CompactedView | None:
    """Compare the compacted view of a table with its expected rows; None if it has not been refreshed since the table
    was created.

    Raises:
        Transient: the lake cannot be read at the moment.
    """
    now = table.view.load()
    position = VIEW.position(now)
    if position is None:
        return CompactedView(now.rows, 0, 0, "its last refresh is not known: refresh it") if now.files else None
    met: list[Exception] = []
    try:
        found = _compare(table, now, position, met)
    except (WritetimeError, FileNotFoundError, exceptions.DeltaError, duckdb.Error) as e:
        # DuckDB and delta-rs pass on the text of an error of the store, and not its kind.
        cause = met[0] if met else OSError(str(e)) if isinstance(e, exceptions.DeltaError | duckdb.Error) else e
        if is_outage(cause):
            raise Transient(f"the compacted view of {table.name} cannot be read now: {reason_of(cause)}") from None
        remedy = f"verify again, refresh it, or run `writetime rebuild {table.name} view`"
        fault = f"it and its rows as of its last refresh cannot be compared: {remedy} ({reason_of(e)})"
        return CompactedView(now.rows, 0, position.batch.as_of, fault)
    if found and not found.fault:
        found = replace(found, fault=_ahead_of_clock(position.batch.as_of))
    return found


def _ahead_of_clock(as_of: int) -> str | None:
    """Return the fault, and the remedy, if a view is as of a time well after the present one (microseconds); None
    if it is not.
    """
    if as_of <= time_now() + CLOCKS_DIFFER:
        return None
    return (
        f"it is as of {instant_text(as_of)}, later than this machine's clock, so rows with a TTL may be missing until "
        "then. If this clock is behind, set it. If another was ahead, the next refresh brings them back"
    )


def _compare(table: LakeTable, view: TableVersion, position: Position, met: list[Exception]) -> CompactedView | None:
    """Compare a version of the view. `met` receives the error if the expected rows cannot be computed."""
    require_same_changes(table, position, table.changes.load())
    changes, state = table.changes.load(position.changes.version), table.state.load(position.state.version)
    if created_of(view) != created_of(changes):
        # Landing has begun the view of a later table of the name.
        return None
    if (folded_version(state) or 0) > position.changes.version:
        raise WritetimeError(f"version {position.state.version} of the state is not the one of that time")
    parts = present_views(table, state, changes, position.batch.as_of)
    wanted = _as_in(view.fields, view_schema(table.schema(changes)))
    storage = table.view.storage
    opened = deltalake.DeltaTable(storage.address, view.version, dict(storage.options))
    with duckdb.connect() as database:
        sums = _sums(database, _in_view(opened, wanted)), _sums(database, _expected(parts, wanted, met))
        rows, expected = (sum(count for count, _ in each.values()) for each in sums)
        groups = [group for group in range(_GROUPS) if sums[0].get(group) != sums[1].get(group)]
        if not groups:
            return CompactedView(rows, expected, position.batch.as_of)
        some = _some(groups, sums)
        held = (
            _held(database, _in_view(opened, wanted), some),
            _held(database, _expected(parts, wanted, met), some),
        )
        found = [WrongRow(row, None) for row in _only_in(database, held[0], held[1])]
        found += [WrongRow(None, row) for row in _only_in(database, held[1], held[0])]
    fault = f"it does not have the rows of its last refresh: run `writetime rebuild {table.name} view`"
    return CompactedView(rows, expected, position.batch.as_of, fault, found)


def _as_in(view: pa.Schema, known: pa.Schema) -> pa.Schema:
    """Return a schema with the fields of user-defined types that the view has got since its last refresh."""
    types = [
        _grown(field.type, view.field(field.name).type) if field.name in view.names else field.type for field in known
    ]
    return pa.schema(list(zip(known.names, types, strict=True)))


def _grown(known: pa.DataType, present: pa.DataType) -> pa.DataType:
    """Return a type with the fields that the present type has in addition, at any depth; they come last."""
    if pa.types.is_struct(known) and pa.types.is_struct(present):
        inner = [pa.field(k.name, _grown(k.type, p.type)) for k, p in zip(known, present, strict=False)]
        return pa.struct([*inner, *list(known)[len(inner) :], *list(present)[len(inner) :]])
    if pa.types.is_list(known) and pa.types.is_list(present):
        return pa.list_(pa.field(known.value_field.name, _grown(known.value_type, present.value_type)))
    return known


def _some(groups: Sequence[int], sums: Sequence[Mapping[int, tuple[int, int]]]) -> list[int]:
    """Return the first groups that together do not have too many rows; at least one group."""
    chosen: list[int] = []
    held = 0
    for group in groups:
        held += max(each.get(group, (0, 0))[0] for each in sums)
        if chosen and held > _ROWS_HELD:
            break
        chosen.append(group)
    return chosen


def _in_view(opened: "deltalake.DeltaTable", wanted: pa.Schema) -> pa.RecordBatchReader:
    names = ", ".join(_quoted(name) for name in wanted.names)
    query = deltalake.QueryBuilder().register("rows", opened)
    return pa.RecordBatchReader.from_stream(query.execute(f"SELECT {names} FROM rows"))


def _expected(parts: Sequence[BucketView], wanted: pa.Schema, met: list[Exception]) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for part in parts:
                yield from part.rows().select(wanted.names).cast(wanted).to_batches()
        except Exception as e:
            met.append(e)
            raise

    return pa.RecordBatchReader.from_batches(wanted, batches())


def _sums(database: "duckdb.DuckDBPyConnection", rows: pa.RecordBatchReader) -> dict[int, tuple[int, int]]:
    """Return the number of rows, and the sum of their hashes, by group."""
    own = _hash(rows.schema)
    found = database.from_arrow(rows).aggregate(f"{own} % {_GROUPS} AS part, count(*), sum({own})", "part")
    return {group: (count, total) for group, count, total in found.fetchall()}


def _held(database: "duckdb.DuckDBPyConnection", rows: pa.RecordBatchReader, groups: Sequence[int]) -> pa.Table:
    """Return the rows of some groups."""
    chosen = f"{_hash(rows.schema)} % {_GROUPS} IN ({', '.join(map(str, groups))})"
    return database.from_arrow(rows).filter(chosen).to_arrow_table()


def _only_in(database: "duckdb.DuckDBPyConnection", one: pa.Table, other: pa.Table) -> list[dict[str, Any]]:
    """Return some rows of one table that the other does not have, or less often, as JSON."""
    database.register("one", one).register("other", other)
    difference = f"SELECT * FROM one EXCEPT ALL SELECT * FROM other LIMIT {_SHOWN}"
    rest = database.sql(difference).to_arrow_table()
    return [{name: json_value(rest[name][i]) for name in rest.column_names} for i in range(rest.num_rows)]


def _hash(schema: pa.Schema) -> str:
    return f"hash({', '.join(_quoted(name) for name in schema.names)})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
