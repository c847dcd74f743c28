"""The rows of a view that meet a condition in DuckDB's SQL."""

import pyarrow as pa

from writetime.core.errors import WritetimeError
from writetime.lookup.conditions import database
from writetime.schema.names import TakenNames, candidates


def filtered(rows: pa.Table, where: str) -> pa.Table:
    """Return the rows that meet a condition, unchanged: the values do not pass through DuckDB. The errors are those of
    `numbers_where`.
    """
    return rows.take(numbers_where(rows, where))


def numbers_where(rows: pa.Table, where: str) -> pa.Array:
    """Return the numbers of the rows that meet a condition in DuckDB's SQL, in order.

    The condition uses the column names of the view. Times without a zone are in UTC. Raises WritetimeError: DuckDB
    rejects the condition.
    """
    import duckdb

    taken = TakenNames(rows.column_names)
    number = next(name for name in candidates("writetime_row") if name not in taken)
    numbered = rows.append_column(number, pa.array(range(rows.num_rows), pa.int64()))
    try:
        chosen = database().from_arrow(numbered).filter(where).order(number).project(number)
        return chosen.fetch_arrow_table()[number].combine_chunks()
    except duckdb.Error as e:
        raise WritetimeError(f"--where {where!r}: {str(e).splitlines()[0]}") from None
