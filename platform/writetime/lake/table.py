"""A captured table in the lake: three Delta tables below `<lake>/<keyspace>.<table>/`, and the schema that they follow.

- `changes`: the changes that were read. Each commit appends one batch.
- `state`: the merged changes, in levels. Each file of a bucket is one level. All levels together are the state.
- `view`: the live rows, one row per row of CQL.

A fourth one, `row_events`, has the row events if they are wanted. The table's schema is kept as JSON (`schema.stored`)
in the properties of `changes`, with the labels of its columns (`lake.labels`).
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from writetime.changes.model import change_schema, column_type, labelled_field
from writetime.core.config import Settings
from writetime.core.errors import MissingTable, NotInLake, Transient, WritetimeError
from writetime.core.extras import require
from writetime.delta.bucketed_table import BucketedTable, holds_fields, takes_fields
from writetime.delta.buckets import check_buckets
from writetime.delta.storage import Storage, lake_storage
from writetime.delta.table_changes import FORGET_REMOVED
from writetime.delta.versions import BUCKETS, TableVersion
from writetime.files.cache import Cache
from writetime.iceberg.catalogs import CatalogEntry
from writetime.iceberg.publication import IcebergTable
from writetime.lake.evolution import join_schemas
from writetime.lake.labels import NAMES, extend, labelled, recorded_labels
from writetime.schema.mapping import arrow_type
from writetime.schema.stored import from_json, to_json
from writetime.schema.table import Column, SchemaError, TableSchema, is_later
from writetime.schema.types import CqlType

SCHEMA = "writetime.schema"
# Transactions of the parts: the number of the table's generation (`lake.generation`), and the number of the table among
# those that were created with this name one after the other, 0 for the first.
GENERATION, CREATED = "generation", "created"
# All characters that the databases allow in names of keyspaces and tables.
_NAME = re.compile(r"\w+\.\w+", re.ASCII)


def view_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of a table's view: the CQL columns by their labels (or names, if they have none)."""
    return pa.schema([(c.label or c.name, arrow_type(c.type)) for c in schema.columns])


class LakeTable:
    """A captured table of the lake; see the module. It may not exist yet; `open_table` and `create_table` return one
    that does.

    Its parts stay open from one use to the next (`BucketedTable`), so an object is for one thread.
    """

    def __init__(
        self,
        storage: Storage,
        cache: Cache = Cache(),  # noqa: B008 It is frozen.
        *,
        iceberg: Mapping[str, str] | None = None,
    ) -> None:
        self.storage = storage
        self.name = PurePosixPath(storage.address).name
        self.cache = cache
        self.changes = BucketedTable(storage.folder("changes"))
        self.state = BucketedTable(storage.folder("state"))
        self.view = BucketedTable(storage.folder("view"))
        # The row events, if they were requested: `writetime.row_events.stream`.
        self.row_events = BucketedTable(storage.folder("row_events"))
        # By the names of the parts that are also Iceberg tables, with the times of their projections.
        self.iceberg = (
            {} if iceberg is None else {name: self._iceberg(name, iceberg) for name in ("view", "row_events")}
        )
        self.registers = True
        """Whether each commit also registers these in the catalog, if there is one."""

    def _iceberg(self, part: str, catalog: Mapping[str, str]) -> IcebergTable:
        """Return the Iceberg table of a part. `catalog` has the properties of the catalog; without any, there is
        none.
        """
        keyspace, _, name = self.name.partition(".")
        entry = CatalogEntry(catalog, (keyspace, name if part == "view" else f"{name}_{part}")) if catalog else None
        return IcebergTable(getattr(self, part), f"{part}/as_of", entry)

    @cached_property
    def buckets(self) -> int:
        """The number of buckets of each part. It never changes. If the table does not exist, or has no valid number of
        them, this raises a `WritetimeError`.
        """
        return check_buckets(int(self.changes.load().properties.get(BUCKETS) or 0))

    @property
    def parts(self) -> tuple[BucketedTable, ...]:
        """The three Delta tables."""
        return self.changes, self.state, self.view

    def require_parts(self) -> None:
        """Check that all parts exist, with one number of buckets, and keep this number. Otherwise raise a
        `WritetimeError`.
        """
        try:
            found = {part.storage.address: part.load().properties.get(BUCKETS) for part in self.parts}
        except WritetimeError:
            if gone := [part.storage.address for part in self.parts if not part.exists()]:
                raise WritetimeError(
                    f"{' and '.join(gone)} cannot be opened as Delta tables: if they are lost, rebuild them from the "
                    f"changes with `writetime rebuild {self.name}`"
                ) from None
            raise
        first = found[self.changes.storage.address]
        for address, buckets in found.items():
            if buckets is None or buckets != first:
                raise WritetimeError(
                    f"{address} has {BUCKETS} = {buckets}, and its changes have {first}: the number of buckets never "
                    "changes; restore the property"
                )
        self.buckets = check_buckets(int(first or 0))

    def schema(self, changes: TableVersion | None = None) -> TableSchema:
        """Return the table's schema at a version of its changes, the newest by default; its columns have labels."""
        changes = changes or self.changes.load()
        schema = from_json(stored_schema(changes))
        return labelled(schema, recorded_labels(changes.properties.get(_named(NAMES, created_of(changes))), schema))

    def whole_schema(self, changes: TableVersion, after: int | None = None, created: int | None = None) -> TableSchema:
        """Return the schema of `schema` with those columns, too, that were dropped after a time (microseconds), by
        default at any time, if `changes` may have their cells. All drops stay in it. `created` is the number of an
        earlier table of the name (`created_of`), by default that of the changes.
        """
        now = created_of(changes)
        created = now if created is None else created
        schema = from_json(_stored(changes, created))
        labels = recorded_labels(changes.properties.get(_named(NAMES, created)), schema)
        live = {column.name for column in schema.columns}
        gone = {
            column.name: column
            for column in schema.dropped
            if column.name in labels.keys() - live
            and (after is None or column.dropped_at > after)
            # The fields of an earlier table are gone.
            and (created != now or _holds(changes, labels[column.name], column.type))
        }
        static, regular = (
            tuple(Column(d.name, d.type) for d in gone.values() if bool(d.static) == kind) for kind in (True, False)
        )
        whole = replace(schema, static=schema.static + static, regular=schema.regular + regular)
        return labelled(whole, labels)

    def follow(self, schema: TableSchema) -> TableSchema:
        """Apply a schema of the source, newer or older than the present one; return the resulting schema.

        Columns and fields of types are added to the Delta tables, never removed, so earlier files stay as they are.
        Raise `SchemaError` if it is not a schema of the same table, or a column came back with a type that Arrow holds
        differently.
        """
        while True:
            now = self.changes.load()
            current = self.schema(now)
            if is_later(current, schema) or is_later(schema, current):
                raise SchemaError(
                    f"{schema.full_name} was dropped and created again: the lake has the table with the id "
                    f"{current.id}, and not the one with the id {schema.id}. Landing switches to the later table "
                    f"automatically; before a backfill, run `writetime forget {schema.full_name}`"
                )
            joined = join_schemas(current, schema)
            # The labels come first, so that all processes add the same fields for a column.
            joined = labelled(joined, self._record_labels(now, joined))
            fields = change_schema(joined)
            if to_json(joined) == to_json(current) and holds_fields(now.fields, fields):
                return joined
            # The next refresh replaces a view of another form.
            if takes_fields(self.view.load().fields, view_schema(joined)):
                self.view.add_fields(view_schema(joined))
            # A version of Writetime may have more fields than the one that made the table.
            for part in (self.state, self.changes):
                part.add_fields(fields)
            # The schema comes last, so that a process that reads it finds its fields.
            self._replace_schema(now, joined)

    def begin(
        self, schema: TableSchema, numbers_after: Callable[[TableVersion], Mapping[str, int]] | None = None
    ) -> None:
        """Begin a generation with another table of the same name, which was created later; nothing of the earlier table
        stays in `changes`. `generation.renew` does the rest. The commit also has the numbers that `numbers_after`
        returns by the last version of the earlier table. Raise `Conflict` if another process rewrote the table
        meanwhile: run this again.
        """
        now = self.changes.load()
        number = (now.transaction(GENERATION) or 0) + 1
        labels, created = extend({}, schema.columns), number
        # Other processes may begin, and follow, at the same time: their properties stay, and a name that has another
        # schema is not used.
        while self._give(f"{SCHEMA}.{created}", _text(schema)) != _text(schema):
            created += 1
        self._give(f"{NAMES}.{created}", json.dumps(labels, ensure_ascii=False))
        fields = change_schema(labelled(schema, labels))
        self.changes.replace(now, [], fields, {GENERATION: number, CREATED: created}, numbers_after=numbers_after)

    def _give(self, name: str, value: str) -> str:
        """Set a property of the changes if it is missing; return its value."""
        return self.changes.update_property(name, lambda properties: properties.get(name, value))

    def _replace_schema(self, changes: TableVersion, schema: TableSchema) -> None:
        """Replace the schema of a version of the changes. If another process has done so since, do nothing."""
        name = _named(SCHEMA, created_of(changes))
        before, after = changes.properties[name], _text(schema)
        self.changes.update_property(name, lambda properties: after if properties[name] == before else properties[name])

    def _record_labels(self, changes: TableVersion, schema: TableSchema) -> dict[str, str]:
        """Record the labels of columns that have none yet in the table of a version of the changes; return all labels
        by CQL name.
        """
        current, name = from_json(stored_schema(changes)), _named(NAMES, created_of(changes))

        def extended(properties: Mapping[str, str]) -> str:
            recorded = recorded_labels(properties.get(name), current)
            return json.dumps(extend(recorded, schema.columns), ensure_ascii=False)

        return json.loads(self.changes.update_property(name, extended))


def find_version(part: BucketedTable, version: int | None) -> TableVersion | None:
    """Return a version of a part, the newest one for None; None if the log of that version was deleted. Raise
    `Transient` if the lake cannot be read now.
    """
    try:
        return part.load(version)
    except Transient:
        raise
    except WritetimeError:
        return None


def created_of(part: TableVersion) -> int:
    """Return the number of the table that a version of a part belongs to, 0 for the first of its name."""
    return part.transaction(CREATED) or 0


def _holds(changes: TableVersion, label: str, cql_type: CqlType) -> bool:
    """Return whether changes have the field of a static or regular column, by its label and type."""
    return holds_fields(changes.fields, pa.schema([(labelled_field(label), column_type(cql_type))]))


def stored_schema(changes: TableVersion) -> Any:
    """Return the table's schema in a version of its changes, as `schema.stored.from_json` reads it."""
    return _stored(changes, created_of(changes))


def _stored(changes: TableVersion, created: int) -> Any:
    return json.loads(changes.properties[_named(SCHEMA, created)])


def _text(schema: TableSchema) -> str:
    return json.dumps(to_json(schema), ensure_ascii=False)


def _named(name: str, created: int) -> str:
    """Return the name of a property of the changes of the table with this number."""
    return f"{name}.{created}" if created else name


def names_table(name: str) -> bool:
    """Return whether a text is the name of a table, `keyspace.table`."""
    return _NAME.fullmatch(name) is not None


def table_storage(settings: Settings, name: str) -> Storage:
    """Return the folder of the table `keyspace.table`. If the name is invalid, so that it could name a folder
    elsewhere, raise a `MissingTable`.
    """
    if not names_table(name):
        raise MissingTable(f"{name!r} names no table: KEYSPACE.TABLE, each of letters, digits and '_'", name)
    return lake_storage(settings).folder(name)


def is_in_lake(settings: Settings, name: str) -> bool:
    """Return whether the lake has the table `keyspace.table`."""
    return LakeTable(table_storage(settings, name)).changes.exists()


def open_table(settings: Settings, name: str) -> LakeTable:
    """Open the table `keyspace.table` of the lake.

    Raises:
        NotInLake: the lake does not have it.
        WritetimeError: a part is missing, the parts have different numbers of buckets, or the table has another format.
    """
    table = _with_changes(settings, name)
    table.require_parts()
    return table


def create_missing_parts(settings: Settings, name: str, wanted: Collection[str] = ()) -> list[str]:
    """Create the state and the view of a table again, empty, if they are missing; return their names. A new state must
    be rebuilt before anything else uses it. Before this, remove the `wanted` parts, by their names, that cannot be
    opened. Raise `NotInLake` if the lake does not have the changes of the table.
    """
    table = _with_changes(settings, name)
    changes = table.changes.load()
    schema, buckets = table.schema(changes), int(changes.properties[BUCKETS])
    for part in wanted:
        _remove_damaged(table, part)
    parts = {"state": (table.state, change_schema(schema)), "view": (table.view, view_schema(schema))}
    missing = [part for part, (delta, _) in parts.items() if not delta.exists()]
    for part in missing:
        delta, fields = parts[part]
        delta.create(fields, buckets, {})
        if created_of(changes):
            delta.replace(delta.load(), [], fields, {CREATED: created_of(changes)})
    return missing


def _remove_damaged(table: LakeTable, part: str) -> None:
    """Remove the folder of a part that exists and cannot be opened."""
    delta: BucketedTable = getattr(table, part)
    try:
        if delta.exists():
            # Its files are read from the log only when they are wanted.
            len(delta.load().files)
    except Transient:
        raise
    except WritetimeError:
        filesystem = delta.storage.filesystem()
        # The log comes first, so that its other files belong to no table if this is killed.
        for info in sorted(filesystem.get_file_info(fs.FileSelector("", recursive=True)), key=lambda i: i.path):
            if info.is_file:
                filesystem.delete_file(info.path)


def unopened(settings: Settings, name: str) -> LakeTable:
    """Return a table that may not exist. Raise `WritetimeError` as in `table_storage`."""
    return LakeTable(table_storage(settings, name), Cache.of(settings), iceberg=_iceberg(settings))


def _with_changes(settings: Settings, name: str) -> LakeTable:
    table = unopened(settings, name)
    if not table.changes.exists():
        fault = f"{table.storage.address} has no changes: load the table {name} with `writetime backfill`"
        raise NotInLake(fault, name)
    return table


def _iceberg(settings: Settings) -> Mapping[str, str] | None:
    """Return the properties of the catalog of Iceberg tables, None if there are no Iceberg tables."""
    if not settings.lake.iceberg:
        return None
    require("pyiceberg")
    return {name: secret.get_secret_value() for name, secret in settings.lake.iceberg_catalog.items()}


def create_table(settings: Settings, schema: TableSchema, more: Mapping[str, str] = {}) -> LakeTable:
    """Open a table of the lake and let it follow this schema. If it does not exist, create it with `lake.buckets`
    buckets, and with `more` properties of its changes. Raise `WritetimeError` as in `open_table` and `follow`.
    """
    buckets = settings.lake.buckets
    table = LakeTable(table_storage(settings, schema.full_name))
    labels = extend({}, schema.columns)
    made = labelled(schema, labels)
    properties = {**FORGET_REMOVED, **more, SCHEMA: _text(schema), NAMES: json.dumps(labels, ensure_ascii=False)}
    # `changes` is created last, because a table exists once it has all parts.
    table.view.create(view_schema(made), buckets, {})
    table.state.create(change_schema(made), buckets, {})
    table.changes.create(change_schema(made), buckets, properties)
    table = open_table(settings, schema.full_name)
    table.follow(schema)
    return table
