"""Registers the Iceberg tables of the lake in a catalog, with pyiceberg: a REST catalog, or pyiceberg's own in SQL.

The metadata in the table's folder counts, and a catalog follows it. A REST catalog gets each new snapshot and keeps
metadata of its own. A SQL catalog gets the address of the metadata, by its own table: pyiceberg (0.12) refuses to write
metadata of format version 3, which it would do for each commit.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from writetime.core.errors import Transient, WritetimeError, plain_text
from writetime.core.extras import WhenUsed, require
from writetime.core.outages import kind_of

if TYPE_CHECKING:
    import requests
    import sqlalchemy.exc
    from pyiceberg import exceptions
    from pyiceberg import schema as schemas
    from pyiceberg.catalog import rest, sql
    from pyiceberg.table.metadata import TableMetadata
    from sqlalchemy import orm
else:
    # Agents import the lake, and are installed without it.
    requests, sqlalchemy, orm = WhenUsed("requests"), WhenUsed("sqlalchemy"), WhenUsed("sqlalchemy.orm")
    exceptions, rest = WhenUsed("pyiceberg.exceptions"), WhenUsed("pyiceberg.catalog.rest")
    schemas, sql = WhenUsed("pyiceberg.schema"), WhenUsed("pyiceberg.catalog.sql")
# Its models take names that pyright does not know.
update: Any = WhenUsed("pyiceberg.table.update")

NAME = "writetime"
"""The name of the catalog, by which SQL catalogs find their rows."""
REQUEST_SECONDS = 30.0
"""How long a request to a REST catalog waits for an answer."""
_NUMBER = re.compile(r"/v(\d+)\.metadata\.json$")
_MAPPING = "schema.name-mapping.default"

Identifier = tuple[str, str]
"""A namespace and the name of a table in it."""


Exists = Callable[[str], bool]
"""Returns whether there is a file with an address in the table's folder."""


class Catalog(Protocol):
    """A catalog as far as it is used here."""

    def register(self, name: Identifier, metadata: Mapping[str, Any], address: str, exists: Exists) -> None:
        """Let a table have a version of the metadata, whose file has this address, or a later one that exists."""
        ...

    def place(self, name: Identifier) -> str | None:
        """Return the folder of a table, None if there is no table of this name."""
        ...

    def drop(self, name: Identifier) -> None:
        """Remove a table, and leave its files."""
        ...


class CatalogEntry:
    """A table of the lake in a catalog, which is opened when it is first used."""

    def __init__(self, properties: Mapping[str, str], name: Identifier) -> None:
        """Prepare an entry. `properties` are those of pyiceberg's catalogs: `type`, `uri`, ..."""
        self._properties = properties
        self._name = name
        self._catalog: Catalog | None = None

    def register(self, metadata: Mapping[str, Any], address: str, exists: Exists) -> None:
        """Let the catalog have a version of the metadata, whose file has this address. `exists` finds whether the
        file of the version that it has was deleted.

        Raises:
            WritetimeError: the catalog does not answer, or refuses it, or has another table of this name. It is a
                `Transient` if this may pass.
        """
        with self._using("register") as catalog:
            catalog.register(self._name, metadata, address, exists)

    def name_of(self, location: str) -> str | None:
        """Return the name of the entry if the catalog has it for the table in a folder, None if it does not.

        Raises:
            WritetimeError: as `register`.
        """
        with self._using("show") as catalog:
            return ".".join(self._name) if _is_same(catalog.place(self._name), location) else None

    def drop(self, location: str) -> None:
        """Remove the entry, if the catalog has it for the table in a folder. The files stay.

        Raises:
            WritetimeError: as `register`.
        """
        with self._using("drop") as catalog:
            if _is_same(catalog.place(self._name), location):
                catalog.drop(self._name)

    @contextmanager
    def _using(self, verb: str) -> Iterator[Catalog]:
        try:
            self._catalog = self._catalog or _opened(self._properties)
            yield self._catalog
        except Exception as e:
            self._catalog = None
            raise _kind(e)(f"the Iceberg catalog does not {verb} {'.'.join(self._name)}: {self._shown(e)}") from None

    def _shown(self, error: Exception) -> str:
        """Return the first line of an error, without values of the settings, which are secrets."""
        text = plain_text(error).partition("\n")[0] or type(error).__name__
        for value in self._properties.values():
            text = text.replace(value, "***") if len(value) > 4 else text
        return text


def _kind(error: Exception) -> type[WritetimeError]:
    """Return the class of the exception that reports an error of a catalog."""
    if isinstance(error, WritetimeError):
        return type(error)
    may_pass = (
        requests.exceptions.ConnectionError,
        requests.exceptions.Timeout,
        sqlalchemy.exc.OperationalError,
        exceptions.ServerError,
        exceptions.ServiceUnavailableError,
        # Another program was first, or has been.
        exceptions.CommitFailedException,
        exceptions.CommitStateUnknownException,
    )
    return Transient if isinstance(error, may_pass) else kind_of(error)


def _opened(properties: Mapping[str, str]) -> Catalog:
    return _SqlCatalog(properties) if properties["type"] == "sql" else _RestCatalog(properties)


def _is_same(found: str | None, wanted: str) -> bool:
    """Return whether a catalog names a folder."""
    return found is not None and found.rstrip("/") == wanted


def _require_place(name: Identifier, found: str, wanted: str) -> None:
    """Check that the table of a name in a catalog is in a folder."""
    if not _is_same(found, wanted):
        raise WritetimeError(
            f"it has another table {'.'.join(name)} at {found}, and not at {wanted}: drop it there, or use another "
            "catalog in lake.iceberg_catalog"
        )


class _SqlCatalog:
    """pyiceberg's SQL catalog."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        require("sqlalchemy")
        self._catalog = sql.SqlCatalog(NAME, **properties)

    def register(self, name: Identifier, metadata: Mapping[str, Any], address: str, exists: Exists) -> None:
        self._catalog.create_namespace_if_not_exists(name[0])
        tables, is_row = sql.IcebergTables, self._is_row(name)
        with orm.Session(self._catalog.engine) as session:
            found = session.scalar(sqlalchemy.select(tables.metadata_location).where(is_row))
            if found is None:
                session.add(tables(NAME, *name, address, None))
            else:
                _require_place(name, _folder(found), metadata["location"])
                if found == address or (_number(found) > _number(address) and exists(found)):
                    return
                # If another program is first, the next registration goes on from its address.
                values = {"metadata_location": address, "previous_metadata_location": found}
                session.execute(
                    sqlalchemy.update(tables).where(is_row & (tables.metadata_location == found)).values(values)
                )
            session.commit()

    def place(self, name: Identifier) -> str | None:
        with orm.Session(self._catalog.engine) as session:
            found = session.scalar(sqlalchemy.select(sql.IcebergTables.metadata_location).where(self._is_row(name)))
        return None if found is None else _folder(found)

    def drop(self, name: Identifier) -> None:
        self._catalog.drop_table(name)

    def _is_row(self, name: Identifier) -> Any:
        """Return the condition for the row of a table."""
        tables = sql.IcebergTables
        return (tables.catalog_name == NAME) & (tables.table_namespace == name[0]) & (tables.table_name == name[1])


def _folder(address: str) -> str:
    """Return the folder of a table by the address of a file of its metadata."""
    return address.rpartition("/metadata/")[0]


def _number(address: str) -> int:
    """Return the number of a version of the metadata by the address of its file."""
    found = _NUMBER.search(address)
    return int(found[1]) if found else -1


class _RestCatalog:
    """A catalog with Iceberg's REST protocol."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._catalog = _with_time_limit()(NAME, **properties)
        # The metadata that the catalog has.
        self._known: TableMetadata | None = None
        self._keeps_schemas = False

    def register(self, name: Identifier, metadata: Mapping[str, Any], address: str, exists: Exists) -> None:
        del address, exists
        known, self._known = self._known, None
        try:
            self._follow(name, known or self._load(name), metadata)
        except exceptions.CommitFailedException:
            # Another program has committed since.
            self._follow(name, self._load(name), metadata)

    def place(self, name: Identifier) -> str | None:
        found = self._load(name)
        return found and found.location

    def drop(self, name: Identifier) -> None:
        self._catalog.drop_table(name)

    def _follow(self, name: Identifier, known: "TableMetadata | None", metadata: Mapping[str, Any]) -> None:
        """Let the catalog have a version of the metadata, given what it has now."""
        if known is not None:
            _require_place(name, known.location, metadata["location"])
            if str(known.table_uuid) != metadata["table-uuid"]:
                # The table began again, with other numbers, or as a table without vectors. There is no request that
                # replaces one that all catalogs know: `overwrite` of `register` is new in Iceberg 1.11, and the catalog
                # of the project refuses it.
                self._catalog.drop_table(name)
                known = None
            elif getattr(known, "last_sequence_number", 0) > metadata["last-sequence-number"]:
                # Another program was first.
                return
        if known is None:
            # The login may have no right to create one.
            if not self._catalog.namespace_exists(name[0]):
                self._catalog.create_namespace_if_not_exists(name[0])
            known = self._commit(name, (update.AssertCreate(),), _updates(None, metadata))
        elif updates := _updates(known, metadata):
            requirements = (
                update.AssertTableUUID(uuid=metadata["table-uuid"]),
                update.AssertRefSnapshotId(ref="main", snapshot_id=known.current_snapshot_id),
            )
            known = self._commit(name, requirements, updates)
        self._known = self._with_needed_schemas(name, known)

    def _with_needed_schemas(self, name: Identifier, known: "TableMetadata") -> "TableMetadata":
        """Let a catalog remove the schemas that no snapshot names; return its metadata."""
        named = {known.current_schema_id, *(each.schema_id for each in known.snapshots)}
        old = [each.schema_id for each in known.schemas if each.schema_id not in named]
        if self._keeps_schemas or not old:
            return known
        try:
            same = (update.AssertTableUUID(uuid=known.table_uuid),)
            return self._commit(name, same, (update.RemoveSchemasUpdate(schema_ids=old),))
        except exceptions.RESTError:
            # Older catalogs do not know the request. All they lose is room in their metadata.
            self._keeps_schemas = True
            return known

    def _load(self, name: Identifier) -> "TableMetadata | None":
        try:
            return self._catalog.load_table(name).metadata
        except exceptions.NoSuchTableError:
            return None

    def _commit(self, name: Identifier, requirements: Sequence[Any], updates: Sequence[Any]) -> "TableMetadata":
        # pyiceberg uses only these of a table.
        table: Any = SimpleNamespace(name=lambda: name, config={})
        return self._catalog.commit_table(table, tuple(requirements), tuple(updates)).metadata


def _with_time_limit() -> "type[rest.RestCatalog]":
    """Return the class of REST catalogs whose requests end: pyiceberg (0.12) sets no time limit."""

    def limit(session: Any) -> Any:
        session.request = partial(session.request, timeout=REQUEST_SECONDS)
        return session

    class LimitedCatalog(rest.RestCatalog):
        def _create_session(self) -> Any:
            return limit(super()._create_session())

        def _create_legacy_oauth2_auth_manager(self, session: Any) -> Any:
            # It asks for a token at once.
            return super()._create_legacy_oauth2_auth_manager(limit(session))

    return LimitedCatalog


def _updates(known: "TableMetadata | None", metadata: Mapping[str, Any]) -> list[Any]:
    """Return the updates that lead from the metadata that a catalog has to a later version of the same table, or, if it
    has none, that make a table with all of the metadata.
    """
    found, schema_ids = _schema_updates(known, metadata)
    if known is None:
        found = [
            update.AssignUUIDUpdate(uuid=metadata["table-uuid"]),
            update.UpgradeFormatVersionUpdate(format_version=metadata["format-version"]),
            *found,
            update.AddPartitionSpecUpdate(spec=metadata["partition-specs"][0]),
            update.SetDefaultSpecUpdate(spec_id=-1),
            update.AddSortOrderUpdate(sort_order=metadata["sort-orders"][0]),
            update.SetDefaultSortOrderUpdate(sort_order_id=-1),
            update.SetLocationUpdate(location=metadata["location"]),
        ]
    has = {each.snapshot_id for each in known.snapshots} if known else set()
    kept = {each["snapshot-id"] for each in metadata["snapshots"]}
    if known is not None and known.format_version < metadata["format-version"]:
        found.insert(0, update.UpgradeFormatVersionUpdate(format_version=metadata["format-version"]))
    if known is None or known.properties.get(_MAPPING) != metadata["properties"][_MAPPING]:
        found.append(update.SetPropertiesUpdate(updates=metadata["properties"]))
    found += [
        update.AddSnapshotUpdate(snapshot=each | {"schema-id": schema_ids[each["schema-id"]]})
        for each in metadata["snapshots"]
        if each["snapshot-id"] not in has
    ]
    current = metadata["current-snapshot-id"]
    if current != (known.current_snapshot_id if known else None):
        found.append(update.SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=current))
    if has - kept:
        found.append(update.RemoveSnapshotsUpdate(snapshot_ids=sorted(has - kept)))
    return found


def _schema_updates(known: "TableMetadata | None", metadata: Mapping[str, Any]) -> tuple[list[Any], dict[int, int]]:
    """Return the updates that add the schemas that a catalog lacks, and the ids that it has for all of them. A catalog
    gives each schema the id after its highest one, so if it did not have all earlier ones, its ids differ from ours.
    """
    has = {each.schema_id: each.fields for each in known.schemas} if known else {}
    found: list[Any] = []
    ids: dict[int, int] = {}
    for each in metadata["schemas"]:
        fields = schemas.Schema.model_validate(each).fields
        same = next((number for number, others in has.items() if others == fields), None)
        if same is None:
            same = max(has, default=-1) + 1
            has[same] = fields
            found.append(update.AddSchemaUpdate(schema=each))
        ids[each["schema-id"]] = same
    current = ids[metadata["current-schema-id"]]
    if known is None or known.current_schema_id != current:
        found.append(update.SetCurrentSchemaUpdate(schema_id=current))
    return found, ids
