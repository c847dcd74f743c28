"""The Iceberg schema of a Delta table, with field ids that stay the same when fields are added.

The Parquet files have no field ids. So the table has a name mapping (format/spec.md, "Column Projection"), and a field
never changes its name or its type. pyiceberg cannot number the fields of an Arrow schema by those of an earlier schema.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from writetime.core.errors import WritetimeError
from writetime.core.extras import WhenUsed
from writetime.delta.parquet import PARTITION, PLACE, PLACE_PARTS

if TYPE_CHECKING:
    from pyiceberg import partitioning, transforms, types
    from pyiceberg import schema as schemas
    from pyiceberg.table import name_mapping as mappings
else:
    # Agents import the lake, and are installed without it.
    schemas, types = WhenUsed("pyiceberg.schema"), WhenUsed("pyiceberg.types")
    partitioning, transforms = WhenUsed("pyiceberg.partitioning"), WhenUsed("pyiceberg.transforms")
    mappings = WhenUsed("pyiceberg.table.name_mapping")

# The first id of a partition field, by the specification.
_FIRST_PARTITION_FIELD = 1000
# The ids of the hidden column `PLACE` and of its parts. No schema has it, and none has so many fields. pyiceberg (0.12)
# refuses files with a column that has no id.
_PLACE_ID = 2_000_000_000

_PRIMITIVES = {
    pa.bool_(): "BooleanType",
    pa.int8(): "IntegerType",
    pa.int16(): "IntegerType",
    pa.int32(): "IntegerType",
    pa.int64(): "LongType",
    pa.float32(): "FloatType",
    pa.float64(): "DoubleType",
    pa.string(): "StringType",
    pa.binary(): "BinaryType",
    pa.date32(): "DateType",
    pa.timestamp("us", "UTC"): "TimestamptzType",
}


class Reshaped(Exception):
    """A field is gone, or has another type. Older files may have values in another form under its name."""


def schema_after(
    fields: pa.Schema, before: "schemas.Schema | None", last: int = 0, *, reshapes: bool = False
) -> "schemas.Schema":
    """Return the Iceberg schema of a Delta table's fields. It has the ids of an earlier schema of the table, and its
    number if the fields are the same, or else the next one. New fields have ids after the `last` one.

    Raises:
        Reshaped: the earlier schema has a field that the fields lack, or one of another type; not if it `reshapes`, as
            for a table without earlier snapshots. Then a column of another type gets new ids.
        WritetimeError: a field has a type that no table of the lake has.
    """
    numbering = _Numbering(last)
    if before is None:
        return schemas.Schema(*numbering.fields(fields, ()), schema_id=0)
    found = (numbering.columns if reshapes else numbering.fields)(fields, before.fields)
    same = tuple(found) == before.fields
    return before if same else schemas.Schema(*found, schema_id=before.schema_id + 1)


def partition_spec(schema: "schemas.Schema") -> "partitioning.PartitionSpec":
    """Return the partition spec: the bucket of the token, whose value is in no data file."""
    source = schema.find_field(PARTITION).field_id
    identity = transforms.IdentityTransform()
    return partitioning.PartitionSpec(
        partitioning.PartitionField(source, _FIRST_PARTITION_FIELD, identity, PARTITION), spec_id=0
    )


def name_mapping(schema: "schemas.Schema") -> str:
    """Return the ids of the columns of data files, by their names, as the JSON of a property of the table."""
    parts = [{"field-id": _PLACE_ID + i, "names": [name]} for i, name in enumerate(PLACE_PARTS, 1)]
    place = mappings.MappedField.model_validate({"field-id": _PLACE_ID, "names": [PLACE], "fields": parts})
    return mappings.NameMapping([*mappings.create_mapping_from_schema(schema), place]).model_dump_json()


class _Numbering:
    """Gives fields their ids: known ones, or else the next ones, at each level before those below."""

    def __init__(self, last: int) -> None:
        self._last = last

    def columns(self, wanted: Iterable[pa.Field], known: "Iterable[types.NestedField]") -> "list[types.NestedField]":
        """Return the fields of a table, those that are not as they were with new ids."""
        before = {field.name: field for field in known}
        found = []
        for each in wanted:
            try:
                found += self.fields([each], [before[each.name]] if each.name in before else [])
            except Reshaped:
                found += self.fields([each], [])
        return found

    def fields(self, wanted: Iterable[pa.Field], known: "Iterable[types.NestedField]") -> "list[types.NestedField]":
        """Return the fields of a struct."""
        before = {field.name: field for field in known}
        wanted = list(wanted)
        if before.keys() - {field.name for field in wanted}:
            raise Reshaped
        ids = [before[f.name].field_id if f.name in before else self._next() for f in wanted]
        return [
            types.NestedField(
                number,
                f.name,
                self._type(f.type, before[f.name].field_type if f.name in before else None),
                required=False,
            )
            for number, f in zip(ids, wanted, strict=True)
        ]

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _type(self, wanted: pa.DataType, known: "types.IcebergType | None") -> "types.IcebergType":
        if pa.types.is_struct(wanted):
            return types.StructType(*self.fields(list(wanted), _as(known, types.StructType).fields if known else ()))
        if pa.types.is_map(wanted):
            old = _as(known, types.MapType) if known else None
            key, value = (old.key_id, old.value_id) if old else (self._next(), self._next())
            key_type = self._type(wanted.key_type, old.key_type if old else None)
            value_type = self._type(wanted.item_type, old.value_type if old else None)
            return types.MapType(key, key_type, value, value_type, value_required=False)
        if pa.types.is_list(wanted):
            old_list = _as(known, types.ListType) if known else None
            element = old_list.element_id if old_list else self._next()
            element_type = self._type(wanted.value_type, old_list.element_type if old_list else None)
            return types.ListType(element, element_type, element_required=False)
        if wanted not in _PRIMITIVES:
            raise WritetimeError(f"Iceberg tables of the lake have no fields of the Arrow type {wanted}")
        found = getattr(types, _PRIMITIVES[wanted])()
        if known is not None and known != found:
            raise Reshaped
        return found


def _as(known: "types.IcebergType | None", kind: type) -> Any:
    if not isinstance(known, kind):
        raise Reshaped
    return known
