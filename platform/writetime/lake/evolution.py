"""How a lake table follows the schema of its source: an older schema changes nothing, a newer one only adds.

Schemas arrive in any order (a snapshot of last week after a commit log of today), so two of them are joined: a column
lives unless one of them knows a later drop of it; a user-defined type has the fields of the longer of the two.

A column that is dropped stays in the Delta tables, with what it had. One that comes back finds its old cells there, and
the merge leaves out those that the drop made void (`TableSchema.dropped`). A type that Arrow holds in the same way
(`ascii` and `text`, `timeuuid` and `uuid`) may be swapped for the other; any other change of a type is refused.
"""

from dataclasses import replace

from writetime.schema.mapping import arrow_type
from writetime.schema.table import Column, DroppedColumn, SchemaError, TableSchema
from writetime.schema.types import Collection, CqlType, Tuple, Udt, Vector, is_complex


def join_schemas(current: TableSchema, seen: TableSchema) -> TableSchema:
    """Return the schema of a table that was seen with two.

    Raises:
        SchemaError: they are of different tables, or a column has two types that Arrow does not hold in the same way.
    """
    for kind in ("partition_key", "clustering"):
        ours, theirs = getattr(current, kind), getattr(seen, kind)
        if [(c.name, c.reversed) for c in ours] != [(c.name, c.reversed) for c in theirs]:
            raise SchemaError(f"{current.full_name} in the lake and {seen.full_name} differ in their primary keys")
    return replace(
        current,
        partition_key=_columns(current, seen, "partition_key"),
        clustering=_columns(current, seen, "clustering"),
        static=_columns(current, seen, "static"),
        regular=_columns(current, seen, "regular"),
        dropped=tuple(sorted(_dropped(current, seen).values(), key=lambda d: d.name)),
        id=current.id or seen.id,
        # Which one is newer, is not known.
        gc_grace_seconds=max(current.gc_grace_seconds, seen.gc_grace_seconds),
    )


def _dropped(current: TableSchema, seen: TableSchema) -> dict[str, DroppedColumn]:
    found: dict[str, DroppedColumn] = {}
    for column in current.dropped + seen.dropped:
        if column.name not in found or column.dropped_at > found[column.name].dropped_at:
            found[column.name] = column
    return found


def _columns(current: TableSchema, seen: TableSchema, kind: str) -> tuple[Column, ...]:
    ours: dict[str, Column] = {c.name: c for c in getattr(current, kind)}
    theirs: dict[str, Column] = {c.name: c for c in getattr(seen, kind)}
    columns = []
    for name in dict.fromkeys([*ours, *theirs]):
        if name in ours and name in theirs:
            joined = _join_types(ours[name].type, theirs[name].type, f"{current.full_name}: column {name}")
            columns.append(replace(ours[name], type=joined))
        elif name in ours and not _dropped_later(name, seen, current):
            columns.append(ours[name])
        elif name in theirs and not _dropped_later(name, current, seen):
            columns.append(theirs[name])
    return tuple(columns)


def _dropped_later(name: str, one: TableSchema, other: TableSchema) -> bool:
    """Return whether `one`, where the column does not live, knows a drop of it that `other` does not."""
    return _last_drop(name, one) > _last_drop(name, other)


def _last_drop(name: str, schema: TableSchema) -> int:
    return max((d.dropped_at for d in schema.dropped if d.name == name), default=-(1 << 63))


def _join_types(one: CqlType, other: CqlType, what: str) -> CqlType:
    match one, other:
        case Udt(), Udt() if one.name == other.name:
            longer = other if len(other.fields) > len(one.fields) else one
            fields = list(longer.fields)
            for i, ((name, t), (other_name, other_t)) in enumerate(zip(one.fields, other.fields, strict=False)):
                if name != other_name:
                    raise SchemaError(
                        f"{what}: field {name} of the type {one.name} was renamed to {other_name}, and Delta's nested "
                        "fields keep their names: bring the table in under another lake.path"
                    )
                fields[i] = (name, _join_types(t, other_t, f"{what}.{name}"))
            return replace(longer, fields=tuple(fields))
        case Collection(), Collection() if (one.kind, one.frozen) == (other.kind, other.frozen):
            return replace(one, arguments=_join_all(one.arguments, other.arguments, what))
        case Tuple(), Tuple() if len(one.arguments) == len(other.arguments):
            return replace(one, arguments=_join_all(one.arguments, other.arguments, what))
        case Vector(), Vector() if one.dimension == other.dimension:
            return replace(one, element=_join_types(one.element, other.element, what))
    if one == other or (arrow_type(one) == arrow_type(other) and is_complex(one) == is_complex(other)):
        return other
    raise SchemaError(
        f"{what} was {one} and is {other}, which the lake holds as {arrow_type(one)} and {arrow_type(other)}: bring "
        "the table in under another lake.path, or give the column another name"
    )


def _join_all(ones: tuple[CqlType, ...], others: tuple[CqlType, ...], what: str) -> tuple[CqlType, ...]:
    return tuple(_join_types(a, b, what) for a, b in zip(ones, others, strict=True))
