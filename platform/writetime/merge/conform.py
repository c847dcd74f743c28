"""Converts changes or states of an older schema of a table to the present one.

| change of the schema | in older changes |
| --- | --- |
| a column is added | the column is null |
| a column is dropped | the column is left out |
| a column is dropped and added again | its older cells are void (`DroppedColumn.dropped_at`) |
| fields are added at the end of a user-defined type | these fields are null |
| fields are renamed | the fields keep their places |

Old databases could change `text` or `ascii` to `blob`. Types no longer change (CASSANDRA-12443).
"""

import functools

import pyarrow as pa

from writetime.changes.model import change_schema, field_name
from writetime.schema.table import SchemaError, TableSchema
from writetime.schema.text import bytes_of_texts

# These may come as dictionaries, because they repeat.
REPEATING = ("kind", "key", "position")
_OWN = ("kind", "key", "token", "position", "end", "marker", "tombstone")


def conform(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Return a table of changes with the fields of `change_schema(schema)`; `origin` may be missing.

    A field of `REPEATING` that has a dictionary keeps it. A required field that is missing, or a type that cannot
    become the present one, is a SchemaError.
    """
    full = change_schema(schema)
    if table.schema.equals(full):
        return table
    required = [*_OWN, *(field_name(c) for c in schema.partition_key + schema.clustering)]
    if missing := [name for name in required if name not in table.schema.names]:
        raise SchemaError(f"changes of {schema.full_name} lack the field {missing[0]}; read them with all fields")
    # All missing fields of a type share their nulls.
    nulls = functools.cache(functools.partial(pa.nulls, len(table)))
    columns = []
    for field in full:
        if field.name not in table.schema.names:
            columns.append(nulls(field.type))
            continue
        column = table[field.name]
        if field.name in REPEATING and pa.types.is_dictionary(column.type):
            columns.append(column)
            continue
        try:
            columns.append(pa.chunked_array([_convert(c, field.type) for c in column.chunks], field.type))
        except TypeError as e:
            raise SchemaError(f"changes of {schema.full_name}, column {field.name}: {e}") from None
    return pa.table(columns, names=full.names)


def _convert(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    found = array.type
    if found.equals(wanted):
        return array
    if pa.types.is_string(found) and pa.types.is_binary(wanted):
        return bytes_of_texts(array)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted) and found.num_fields <= wanted.num_fields:
        parts = [
            _convert(array.field(i), field.type) if i < found.num_fields else pa.nulls(len(array), field.type)
            for i, field in enumerate(wanted)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=array.is_null())
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        values = _convert(array.values, wanted.value_type)
        return pa.ListArray.from_arrays(_offsets(array), values, type=wanted, mask=array.is_null())
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        keys, items = _convert(array.keys, wanted.key_type), _convert(array.items, wanted.item_type)
        return pa.MapArray.from_arrays(_offsets(array), keys, items, type=wanted, mask=array.is_null())
    raise TypeError(f"{found} cannot become {wanted}")


def _offsets(array: pa.Array) -> pa.Array:
    """Return the offsets as a separate array, because those of a slice cannot be combined with a mask."""
    return pa.array(array.offsets.to_numpy())
