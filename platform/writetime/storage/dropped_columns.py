"""Columns of an SSTable that its table no longer has: those that were dropped, and those that were added again with
another type or kind. Their cells are skipped.
"""

from writetime.schema.compatible import is_readable
from writetime.schema.table import DroppedColumn, SchemaError, TableSchema
from writetime.schema.types import Native, is_complex
from writetime.storage.statistics import Header

# Every cell is older.
_END_OF_TIME = (1 << 63) - 1
# The schema's type and that of a file: values of one are values of the other, in the same bytes
# (`AbstractType.isValueCompatibleWith`; `is_value_compatible_with` of ScyllaDB's types.cc).
_COMPATIBLE = {("text", "ascii"), ("uuid", "timeuuid"), ("timestamp", "bigint"), ("bigint", "timestamp")}


def former_columns(file: str, header: Header, schema: TableSchema) -> tuple[DroppedColumn, ...]:
    """Return the columns of a header whose cells do not belong to a live column, with the types of the header.

    All cells of a dropped column are void. In ScyllaDB, a column can be added again with another type, and a static
    column as a regular one. Then the cells up to the drop are void, and newer cells with the old type are not expected.
    ScyllaDB does not record whether a dropped column was static, so this is not compared.

    Args:
        file: the name of the file with the header, for errors.
        header: the header.
        schema: the table.

    Raises:
        SchemaError: the schema lacks a column, or has it with another type but without a drop.
    """
    live = {True: {c.name: c.type for c in schema.static}, False: {c.name: c.type for c in schema.regular}}
    dropped_at: dict[str, int] = {}
    for d in schema.dropped:
        dropped_at[d.name] = max(d.dropped_at, dropped_at.get(d.name, d.dropped_at))
    former = []
    for columns, static in ((header.static, True), (header.regular, False)):
        for name, stored in columns:
            known = live[static].get(name)
            if (
                known is not None
                and is_complex(stored) == is_complex(known)
                and is_readable(stored, known, _are_compatible)
            ):
                continue
            if name in dropped_at:
                again = name in live[True] or name in live[False]
                former.append(DroppedColumn(name, stored, static, dropped_at[name] if again else _END_OF_TIME))
            elif known is None:
                kind = "static" if static else "regular"
                raise SchemaError(
                    f"{file}: {schema.full_name} has no {kind} column {name}, live or dropped: if it was dropped, the "
                    "schema must include the time of the drop"
                )
            else:
                fields = ", with other fields" if str(stored) == str(known) else ""
                raise SchemaError(f"{file}: column {name} is stored as {stored}, not as {known}{fields}")
    return tuple(former)


def _are_compatible(stored: Native, known: Native) -> bool:
    if known.name == "blob" and stored.fixed_length is None and stored.name != "counter":
        return True
    return stored == known or (known.name, stored.name) in _COMPATIBLE
