"""The tables that the platform follows: the entries `[tables.<keyspace>.<table>]` of the settings.

Each entry is read separately. An invalid one is refused with its reason, and does not affect the others.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cassandra.cluster import Session
from pydantic import ValidationError

from writetime.clients.database import DRIVER_FAULTS, answers, connect
from writetime.core.config import Settings, TableEntry
from writetime.core.errors import WritetimeError
from writetime.core.settings_sources import faults
from writetime.lake.labels import newly_labelled
from writetime.lake.table import open_table
from writetime.schema.similar_tables import most_similar
from writetime.schema.system import read_schemas
from writetime.schema.table import TableSchema
from writetime.schema.types import quote_table
from writetime.scylla_cdc.log import SUFFIX

# How the names of the database's own keyspaces begin.
_SYSTEM = "system"
# Characters that the database allows in names of keyspaces and tables, quoted or not.
_NAME = re.compile(r"\w+", re.ASCII)


@dataclass(frozen=True)
class FollowedTable:
    """A table that is followed: its name as `keyspace.table`, its entry, and its schema if that is known."""

    name: str
    entry: TableEntry = field(default_factory=TableEntry)
    schema: TableSchema | None = None


@dataclass(frozen=True)
class RefusedEntry:
    """An entry that cannot be followed, and the reason."""

    name: str
    reason: str


def followed_tables(settings: Settings) -> tuple[list[FollowedTable], list[RefusedEntry]]:
    """Return the tables that are followed, and the entries that are refused.

    Schemas come from the database. If it does not answer at once, they come from the lake, or are not known. No entry
    is refused for this reason.
    """
    tables: list[FollowedTable] = []
    read, refused = read_entries(settings)
    known = _schemas(settings, [table.name for table in read]) if settings.tables else None
    for table in read:
        try:
            tables.append(replace(table, schema=_schema_of(settings, table.name, known)))
        except WritetimeError as e:
            refused.append(RefusedEntry(table.name, str(e)))
    return tables, refused


def read_entries(settings: Settings) -> tuple[list[FollowedTable], list[RefusedEntry]]:
    """Return the tables that the entries name, without their schemas, and the invalid entries."""
    tables: list[FollowedTable] = []
    refused: list[RefusedEntry] = []
    for name, entry in _entries(settings.tables):
        try:
            tables.append(FollowedTable(name, _entry_of(name, entry)))
        except WritetimeError as e:
            refused.append(RefusedEntry(name, str(e)))
    return tables, refused


def _entries(tables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each entry with its name, in which a part with dots is in quotes. So no two entries have one name."""
    for keyspace, entries in ((_quoted(name), of_keyspace) for name, of_keyspace in tables.items()):
        if not isinstance(entries, dict) or not entries:
            yield keyspace, None
            continue
        for name, entry in entries.items():
            yield f"{keyspace}.{_quoted(name)}", entry if isinstance(entry, dict) else None


def _quoted(part: str) -> str:
    return f'"{part}"' if "." in part else part


def _entry_of(name: str, entry: dict[str, Any] | None) -> TableEntry:
    parts = name.split(".")
    if entry is None or len(parts) != 2 or not all(map(_NAME.fullmatch, parts)):
        raise WritetimeError("a table's entry is written [tables.<keyspace>.<table>]")
    try:
        return TableEntry.model_validate(entry)
    except ValidationError as e:
        raise WritetimeError(f"[tables.{name}] {'; '.join(faults(e, TableEntry))}") from None


def _schema_of(
    settings: Settings, name: str, known: dict[str, TableSchema | WritetimeError] | None
) -> TableSchema | None:
    if known is None:
        return _schema_of_lake(settings, name)
    schema = known[name]
    if isinstance(schema, WritetimeError):
        raise schema
    return newly_labelled(schema)


def _schemas(settings: Settings, names: Sequence[str]) -> dict[str, TableSchema | WritetimeError] | None:
    """Return the schemas of tables, or why one cannot be read; None if no database answers."""
    if not answers(settings):
        return None
    try:
        with connect(settings) as session:
            found = read_schemas(session, [name for name in settings.tables if _NAME.fullmatch(name)])
            missing = [name for name in names if name not in found]
            # The names of all other tables are only needed for a suggestion.
            known = are_captured(session, settings) if missing else {}
    except (WritetimeError, *DRIVER_FAULTS):
        return None
    return {**found, **{name: _missing(name, known) for name in missing}}


def _missing(name: str, known: Iterable[str]) -> WritetimeError:
    similar = most_similar(name, known)
    meant = f"; is it {similar}? Create the table" if similar else ": create it"
    return WritetimeError(f"the database has no table {name}{meant}, or correct the entry [tables.{name}]")


def _schema_of_lake(settings: Settings, name: str) -> TableSchema | None:
    try:
        return open_table(settings, name).schema()
    except (WritetimeError, OSError):
        return None


def cdc_option(settings: Settings) -> str:
    """Return the value of a table's option `cdc` that lets the database log its changes."""
    return "true" if settings.capture.source == "commitlog" else "{'enabled': true}"


def cdc_statement(settings: Settings, name: str) -> str:
    """Return the statement that lets the database log the changes of a table."""
    return f"ALTER TABLE {quote_table(name)} WITH cdc = {cdc_option(settings)}"


def is_captured(session: Session, settings: Settings, name: str) -> bool:
    """Return whether the database logs the changes of a table: `cdc = true` in Cassandra, a CDC log in ScyllaDB."""
    keyspace, _, table = name.partition(".")
    query = "SELECT * FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    if settings.capture.source == "scylla-cdc":
        return session.execute(query, [keyspace, table + SUFFIX]).one() is not None
    return bool(getattr(session.execute(query, [keyspace, table]).one(), "cdc", False))


def are_captured(session: Session, settings: Settings) -> dict[str, bool]:
    """Return the result of `is_captured` for all tables except the database's own, by name. CDC logs are left out, but
    count for any source: only the settings of the agent need to name it.
    """
    rows = [
        row
        for row in session.execute("SELECT * FROM system_schema.tables")
        if not row.keyspace_name.startswith(_SYSTEM)
    ]
    cdc = {f"{row.keyspace_name}.{row.table_name}": bool(getattr(row, "cdc", False)) for row in rows}
    tables = [name for name in cdc if not name.endswith(SUFFIX) or name.removesuffix(SUFFIX) not in cdc]
    is_log = settings.capture.source == "scylla-cdc"
    return {name: name + SUFFIX in cdc or (not is_log and cdc[name]) for name in tables}
