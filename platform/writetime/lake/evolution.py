"""Joins schemas, so that a lake table follows its source. An older schema changes nothing, and a newer one only adds.

Schemas arrive in any order (a snapshot of last week after a commit log of today), so two schemas are joined. A column
is live unless one of them has a later drop of it. A user-defined type has the fields of the longer of the two.

A renamed key column keeps the name that it had when the lake got the table. Its place in the key identifies the column,
because a place never changes; the order in which schemas arrive does not show which name is newer.

A dropped column stays in the Delta tables, with its values. If it comes back, its old cells are still there, and the
merge leaves out those that the last drop made void (`TableSchema.dropped`, which has all drops here). As of an instant
before the drop, they count (`history.schema_at`). So the lake keeps the type that the column had in it: the database
records a dropped user-defined type as a tuple, without the names of its fields.

A type may change to one that Arrow holds in the same way (`ascii` and `text`, `timeuuid` and `uuid`). Any other change
of a type is rejected. If one schema has a later drop of the column, its type counts. Otherwise the database allows only
a wider type, so the wider one counts. If neither is wider, the lake keeps its own.
"""

from collections.abc import Container, Iterator
from dataclasses import replace

from writetime.changes.model import column_type
from writetime.schema.mapping import arrow_type
from writetime.schema.table import Column, DroppedColumn, SchemaError, TableSchema
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector, is_complex

# Natives that Arrow holds in the same way; the second one of a pair has all values of the first.
_WIDER = {(Native("ascii"), Native("text")), (Native("timeuuid"), Native("uuid"))}


def join_schemas(current: TableSchema, seen: TableSchema) -> TableSchema:
    """Return the schema of a table from two schemas of it. Raise `SchemaError` if they are of different tables, or a
    column has two types that Arrow does not hold in the same way.
    """
    seen = with_key_names(seen, current)
    static, regular = (_columns(current, seen, kind) for kind in ("static", "regular"))
    live = {column.name for column in static + regular}
    return replace(
        current,
        partition_key=_columns(current, seen, "partition_key"),
        clustering=_columns(current, seen, "clustering"),
        static=static,
        regular=regular,
        dropped=tuple(sorted(_dropped(current, seen, live), key=lambda d: (d.name, d.dropped_at))),
        id=current.id or seen.id,
        # It is not known which one is newer.
        gc_grace_seconds=max(current.gc_grace_seconds, seen.gc_grace_seconds),
    )


def with_key_names(schema: TableSchema, named: TableSchema) -> TableSchema:
    """Return a schema whose key columns have the names that they have in another schema of the table. Raise
    `SchemaError` if the primary keys differ, or another column has a name that a key column had before. If both schemas
    have the same table id, the names of key columns may differ.
    """
    if schema.full_name != named.full_name or any(
        [c.reversed for c in getattr(schema, kind)] != [c.reversed for c in getattr(named, kind)]
        for kind in ("partition_key", "clustering")
    ):
        raise SchemaError(f"{named.full_name} in the lake and {schema.full_name} differ in their primary keys")
    ours, theirs = ([c.name for c in s.partition_key + s.clustering] for s in (named, schema))
    if ours == theirs:
        return schema
    was, now = next((a, b) for a, b in zip(ours, theirs, strict=True) if a != b)
    if schema.id is None or schema.id != named.id:
        raise SchemaError(
            f"{named.full_name}: the key column {was} in the lake is {now} in the schema that was found. Only a table "
            "id can show that the column was renamed: add WITH ID = .. to the CREATE TABLE"
        )
    if taken := {c.name for c in schema.static + schema.regular} & set(ours):
        raise SchemaError(
            f"{named.full_name}: the key column {min(taken)} was renamed, and another column has its name now. In the "
            "lake key columns keep their names: bring the table in under another lake.path"
        )
    names = iter(ours)
    return replace(
        schema,
        partition_key=tuple(replace(c, name=next(names)) for c in schema.partition_key),
        clustering=tuple(replace(c, name=next(names)) for c in schema.clustering),
    )


def _dropped(current: TableSchema, seen: TableSchema, live: Container[str]) -> Iterator[DroppedColumn]:
    # The database records only the last drop of a column that was added again. As of an instant before that, the one
    # before it counts.
    found: dict[tuple[str, int], DroppedColumn] = {}
    for column in current.dropped + seen.dropped:
        found.setdefault((column.name, column.dropped_at), column)
    for column in found.values():
        # One of the two may still have it.
        as_lived = [] if column.name in live else [_as_lived(column, schema) for schema in (current, seen)]
        yield next(filter(None, as_lived), column)


def _as_lived(dropped: DroppedColumn, schema: TableSchema) -> DroppedColumn | None:
    """Return a dropped column as it was in an earlier schema, which has more than the database's record of the drop:
    the record has a tuple for a user-defined type, and in ScyllaDB no kind. Return None if that schema lacks it.
    """
    for columns in (schema.static, schema.regular):
        for column in columns:
            if column.name == dropped.name:
                is_same = column_type(column.type) == column_type(dropped.type)
                cql_type = dropped.type if is_same else column.type
                return replace(dropped, type=cql_type, static=columns is schema.static)
    return None


def _columns(current: TableSchema, seen: TableSchema, kind: str) -> tuple[Column, ...]:
    ours: dict[str, Column] = {c.name: c for c in getattr(current, kind)}
    theirs: dict[str, Column] = {c.name: c for c in getattr(seen, kind)}
    columns = []
    for name in dict.fromkeys([*ours, *theirs]):
        if name in ours and name in theirs:
            what = f"{current.full_name}: column {name}"
            later = _dropped_later(name, seen, current) - _dropped_later(name, current, seen)
            columns.append(replace(ours[name], type=_join_types(ours[name].type, theirs[name].type, later, what)))
        elif name in ours and not _dropped_later(name, seen, current):
            columns.append(ours[name])
        elif name in theirs and not _dropped_later(name, current, seen):
            columns.append(theirs[name])
    return tuple(columns)


def _dropped_later(name: str, one: TableSchema, other: TableSchema) -> bool:
    """Return whether `one` has a later drop of a column than `other`, or `other` has none."""
    return _last_drop(name, one) > _last_drop(name, other)


def _last_drop(name: str, schema: TableSchema) -> int:
    return max((d.dropped_at for d in schema.dropped if d.name == name), default=-(1 << 63))


def _join_types(one: CqlType, other: CqlType, later: int, what: str) -> CqlType:
    """Return the type of a column with two types; `later` is 1 if `other` is the later one, -1 if `one` is, else 0."""
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
                fields[i] = (name, _join_types(t, other_t, later, f"{what}.{name}"))
            return replace(longer, fields=tuple(fields))
        case Collection(), Collection() if (one.kind, one.frozen) == (other.kind, other.frozen):
            return replace(one, arguments=_join_all(one.arguments, other.arguments, later, what))
        case Tuple(), Tuple() if len(one.arguments) == len(other.arguments):
            return replace(one, arguments=_join_all(one.arguments, other.arguments, later, what))
        case Vector(), Vector() if one.dimension == other.dimension:
            return replace(one, element=_join_types(one.element, other.element, later, what))
    if one == other or (arrow_type(one) == arrow_type(other) and is_complex(one) == is_complex(other)):
        is_other = later > 0 or (later == 0 and (one, other) in _WIDER)
        return other if is_other else one
    raise SchemaError(
        f"{what} was {one} and is {other}, which the lake holds as {arrow_type(one)} and {arrow_type(other)}: bring "
        "the table in under another lake.path, or give the column another name"
    )


def _join_all(ones: tuple[CqlType, ...], others: tuple[CqlType, ...], later: int, what: str) -> tuple[CqlType, ...]:
    return tuple(_join_types(a, b, later, what) for a, b in zip(ones, others, strict=True))
