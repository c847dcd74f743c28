"""Merged changes, compared with the rows that the database returns."""

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.support import answers
from tests.support.expected import assert_same, plain
from writetime.changes.model import field_name
from writetime.merge import live_rows
from writetime.merge.value_order import has_forms
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native, is_complex


@dataclass
class History:
    """One table: the changes of each of its SSTables, those of the commit log, and the database's rows."""

    schema: TableSchema
    sstables: list[pa.Table]
    log: pa.Table
    raw: list[list[bytes | None]]
    write_times: list[dict[str, int | None]]
    as_of: int

    @property
    def rows(self) -> pa.Table:
        """The rows of `SELECT *`."""
        return answers.decoded(self.raw, self.schema)


def with_one_form(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Give equal decimals in clustering columns the same form: no document states which one the database keeps."""
    for column in schema.clustering:
        if has_forms(column.type):
            index = rows.schema.get_field_index(column.name)
            texts = [repr(normal(plain(v))) for v in rows[column.name]]
            rows = rows.set_column(index, column.name, pa.array(texts))
    return rows


def normal(value: Any) -> Any:
    """Give equal decimals in a value the same form."""
    if isinstance(value, list | tuple):
        return [normal(v) for v in value]
    if isinstance(value, dict):
        return {k: normal(v) for k, v in value.items()}
    try:
        return str(Decimal(value).normalize()) if isinstance(value, str) else value
    except ArithmeticError:
        return value


def assert_answers(state: pa.Table, history: History) -> None:
    schema = history.schema
    found = live_rows(state, schema, history.as_of)
    found.validate(full=True)
    assert_same(with_one_form(found, schema), with_one_form(history.rows, schema))


def with_times_as_values(state: pa.Table, schema: TableSchema, part: str) -> tuple[pa.Table, TableSchema]:
    """Replace the value of each simple cell by one of its times."""
    for column in schema.static + schema.regular:
        if not is_complex(column.type):
            name = field_name(column)
            cells = state[name].combine_chunks()
            times = [cells.field(part), *(cells.field(i) for i in range(1, cells.type.num_fields))]
            made = pa.StructArray.from_arrays(times, names=list(cells.type.names), mask=cells.is_null())
            state = state.set_column(state.schema.get_field_index(name), name, made)

    def timed(columns: tuple[Column, ...]) -> tuple[Column, ...]:
        return tuple(c if is_complex(c.type) else replace(c, type=Native("bigint")) for c in columns)

    return state, replace(schema, static=timed(schema.static), regular=timed(schema.regular))


def assert_times(state: pa.Table, schema: TableSchema, as_of: int, wanted: list[dict[str, int | None]]) -> None:
    """Compare write times and TTLs with the result of `answers.write_times` at about a second."""
    found: dict[str, list[dict[str, int | None]]] = {}
    for part in ("write_time", "deletion_time"):
        rows = live_rows(*with_times_as_values(state, schema, part), as_of)
        found[part] = rows.select([c for c in rows.column_names if rows.schema.field(c).type == "int64"]).to_pylist()
    for times, expiries, asked in zip(found["write_time"], found["deletion_time"], wanted, strict=False):
        for name in [n for n in asked if not n.startswith("ttl ")]:
            assert times[name] == asked[name]
            left = asked[f"ttl {name}"]
            assert (expiries[name] is None) == (left is None)
            # The database was asked a moment before `as_of`; no TTL that lives is near to its end.
            assert left is None or abs(expiries[name] - as_of - left) < 60  # type: ignore[operator]
