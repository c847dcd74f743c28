"""The change: the common form of all data that is read.

A change is the part of one row that one source has: its cells with their write times, or one deletion. Its fields:

- `kind`: `row`, `static`, `range_tombstone` or `partition_tombstone`
- the partition key columns, `key` (the serialised key, which `token` hashes) and `token`
- the clustering columns (null unless `kind` is `row`), `position` and `end`
- `marker`: a row's liveness, if it was inserted and not only updated
- `tombstone`: the deletion of the row, range or partition
- a cell, or a struct of cells, for every static and regular column; null where the source has none for the column
  (a counter's cell also has its `shards`, and `value` is the sum of those that count)
- `origin`: the source that the change was read from

A decoded value may have lost parts of its bytes (`schema.serialise.loses_parts`). A cell of such a type also has
`value_bytes`, and an element with such a path `path_bytes`: the serialised value, where the decoded one gives others.

Write times are in microseconds; `expiry`, `deletion_time` and `ttl` are in seconds. `changes.position` encodes
`position` and `end`.
"""

import functools
import re

import pyarrow as pa

from writetime.schema.mapping import stored_type
from writetime.schema.names import fold
from writetime.schema.serialise import loses_parts
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, is_complex

ROW, STATIC, RANGE_TOMBSTONE, PARTITION_TOMBSTONE = range(4)
KINDS = ("row", "static", "range_tombstone", "partition_tombstone")

_TEXT, _NUMBER, _FLAG = pa.string(), pa.int64(), pa.bool_()
MARKER = pa.struct([("write_time", _NUMBER), ("ttl", pa.int32()), ("expiry", _NUMBER)])
TOMBSTONE = pa.struct([("write_time", _NUMBER), ("deletion_time", _NUMBER)])
_CAPTURED_AT = pa.timestamp("us", "UTC")
ORIGIN = pa.struct(
    [("source", _TEXT), ("node", _TEXT), ("file", _TEXT), ("offset", _NUMBER), ("captured_at", _CAPTURED_AT)]
)
# A part of a counter. `kind` is `global`, or in Cassandra 2.0 and older `local` or `remote`; `id` names the node.
SHARD = pa.struct([("id", _TEXT), ("kind", _TEXT), ("clock", _NUMBER), ("count", _NUMBER), ("write_time", _NUMBER)])
GLOBAL, LOCAL, REMOTE = SHARD_KINDS = ("global", "local", "remote")
_CELL_TIMES = [("write_time", _NUMBER), ("ttl", pa.int32()), ("deletion_time", _NUMBER), ("tombstone", _FLAG)]

RESERVED = ("kind", "key", "token", "position", "end", "marker", "tombstone", "origin")
"""Fields of every change. A column may have the same name; see `field_name`."""
_PREFIX = "column_"
_PREFIXED = re.compile(f"(?:{_PREFIX})*(?:{'|'.join(RESERVED)})")


def cell_type(cql_type: CqlType) -> pa.DataType:
    """Return the Arrow type of a cell with a value of a type."""
    return _cell([("value", cql_type)])


def _cell(parts: list[tuple[str, CqlType]]) -> pa.DataType:
    """Return the Arrow type of a cell. Bytes come last, because older changes lack them."""
    values = [(name, stored_type(t)) for name, t in parts]
    exact = [(f"{name}_bytes", pa.binary()) for name, t in parts if loses_parts(t)]
    return pa.struct([*values, *_CELL_TIMES, *exact])


# The results are cached, because each merge needs those of all columns.
@functools.lru_cache(1024)
def column_type(cql_type: CqlType) -> pa.DataType:
    """Return the Arrow type of a static or regular column: a cell, or a column tombstone and the cells of its parts."""
    if cql_type == Native("counter"):
        return pa.struct([*cell_type(cql_type), ("shards", pa.list_(pa.field("element", SHARD)))])
    if not is_complex(cql_type):
        return cell_type(cql_type)
    if isinstance(cql_type, Collection):
        elements = pa.list_(pa.field("element", _cell(element_types(cql_type))))
        return pa.struct([("tombstone", TOMBSTONE), ("elements", elements)])
    fields = [(name, cell_type(t)) for name, t in udt_fields(cql_type)]
    return pa.struct([("tombstone", TOMBSTONE), ("fields", pa.struct(fields))])


def element_types(cql_type: Collection) -> list[tuple[str, CqlType]]:
    """Return the names and the types of the values of a collection's element: its path, and its value unless it is that
    of a set.
    """
    if cql_type.kind == "list":
        return [("path", Native("timeuuid")), ("value", cql_type.arguments[0])]
    return list(zip(("path", "value"), cql_type.arguments, strict=False))


def udt_fields(cql_type: CqlType) -> list[tuple[str, CqlType]]:
    """Return the Arrow name and the type of each field of a user-defined type. A dropped type is known as a tuple, and
    its fields are `_1`, `_2`, ....
    """
    assert isinstance(cql_type, Udt | Tuple)
    return cql_type.distinct_fields


def field_name(column: Column) -> str:
    """Return the name of a column's field in a change.

    A reserved name gets the prefix `column_`. In a table of the lake, the name follows from the column's label, without
    regard to case, and the table ensures that no two fields have the same name. Elsewhere it follows from the column's
    name alone, exactly as it is. So the field's name does not change when other columns are added or dropped. The
    column `key` has the field `column_key`, and a column `column_key` has the field `column_column_key`.
    """
    if column.label:
        return labelled_field(column.label)
    return _PREFIX + column.name if _PREFIXED.fullmatch(column.name) else column.name


def labelled_field(label: str) -> str:
    """Return the name of a column's field in the changes of a table of the lake, by the column's label."""
    return _PREFIX + label if fold(label) in RESERVED else label


def change_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of a table's changes."""
    fields: list[tuple[str, pa.DataType]] = [("kind", pa.string())]
    fields += [(field_name(c), stored_type(c.type)) for c in schema.partition_key]
    fields += [("key", pa.binary()), ("token", pa.int64())]
    fields += [(field_name(c), stored_type(c.type)) for c in schema.clustering]
    fields += [("position", pa.binary()), ("end", pa.binary()), ("marker", MARKER), ("tombstone", TOMBSTONE)]
    fields += [(field_name(c), column_type(c.type)) for c in schema.static + schema.regular]
    fields.append(("origin", ORIGIN))
    return pa.schema(fields)
