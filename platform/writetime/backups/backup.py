"""A backup: the SSTables of one node and one table, with the data that identify each SSTable in later backups."""

import gzip
import posixpath
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from uuid import UUID

from writetime.core.errors import WritetimeError
from writetime.schema.cql import parse_schemas
from writetime.schema.table import TableSchema
from writetime.storage.file_errors import CorruptFile
from writetime.storage.folders import Folder
from writetime.storage.locations import Location, without_secrets


@dataclass(frozen=True)
class BackupFile:
    """The data file of an SSTable: its address, its size in bytes, and the node that wrote it, if that is known.

    `mark` is a text from a listing or manifest. It identifies the content among files of the same node, name and size.
    So a file that was read before is recognised without opening it. It is empty if nothing is known.
    """

    address: str
    location: Location
    size: int
    node: str = ""
    mark: str = ""

    @cached_property
    def digest(self) -> str:
        """The CRC32 of the data file, which the database keeps in Digest.crc32; the mark if it has none. Raises
        CorruptFile if Digest.crc32 is not a number.
        """
        if not self.location.exists("Digest.crc32"):
            return self.mark or f"at:{without_secrets(self.address)}"
        text = self.location.read("Digest.crc32")
        try:
            return f"crc32:{int(text)}"
        except ValueError:
            raise CorruptFile(self.location.path("Digest.crc32"), None, "a CRC32 in digits was expected") from None


@dataclass(frozen=True)
class NodeBackup:
    """The SSTables of a table in one backup of one node.

    The backup was taken between `taken_at` and `complete_at` (microseconds). `dated`: these times are known. Otherwise
    `taken_at` is the time of its newest write, and `complete_at` the time of its newest file. `flushed_at` is the time
    of the newest write in its incremental backups, 0 if it has none. `is_part`: it has no manifest, so another one has
    its time. `is_whole`: a manifest lists the files of the node. `lists_dropped`: the schema has the dropped columns
    and the times of their drops. `missing_nodes` are nodes of the cluster without a backup. `lacking` are the data
    files that the manifest of a snapshot lists and its folder does not have, and `unlisted` those that it does not
    list, as addresses by name, without secrets.
    """

    node: str
    files: tuple[BackupFile, ...]
    taken_at: int
    complete_at: int
    dated: bool
    schema: TableSchema | None = None
    lists_dropped: bool = True
    missing_nodes: tuple[str, ...] = ()
    lacking: Mapping[str, str] = field(default_factory=dict)
    unlisted: Mapping[str, str] = field(default_factory=dict)
    flushed_at: int = 0
    is_part: bool = False
    is_whole: bool = True

    @property
    def until(self) -> int:
        """The time (microseconds) up to which it has the writes of the node, with its incremental backups."""
        return max(self.taken_at, self.flushed_at)


@dataclass(frozen=True)
class Found:
    """The backups at a place: their names, which were listed, and the function that reads the newest of each node."""

    names: tuple[str, ...]
    read: Callable[[], list[NodeBackup]]


def newest_table(table: str, ids: Iterable[str]) -> str:
    """Return the id of the last of several tables that had the same name one after the other (ids have 32 hexadecimal
    digits). Databases derive ids from the time. Raise a WritetimeError if a user chose one of them.
    """
    found = {text: UUID(text) for text in ids}
    if len(found) > 1 and any(each.version != 1 for each in found.values()):
        raise WritetimeError(
            f"there were two tables {table}, with the ids {' and '.join(sorted(found))}. A user chose an id, so the "
            "ids do not show which table is later: name the folder of one table's snapshot"
        )
    return max(found, key=lambda text: found[text].time)


def schema_of(text: str, table: str, file: Folder, table_id: str) -> TableSchema:
    """Return the schema of one table, with its id, in the CQL of a whole cluster. Raise a WritetimeError if that does
    not have the table.
    """
    found = [schema for schema in parse_schemas(text, only=table) if schema.full_name == table]
    if not found:
        raise WritetimeError(f"{file.shown} has no CREATE TABLE of {table}: pass a file with it as --schema")
    return replace(found[0], id=UUID(table_id))


@contextmanager
def parsing(place: Folder, path: str, what: str, removal: str) -> Iterator[None]:
    """Turn the errors of parsing a file below a place into one that names it. `removal` deletes its backup."""
    try:
        yield
    except (AttributeError, EOFError, gzip.BadGzipFile, KeyError, TypeError, ValueError, zlib.error) as e:
        raise WritetimeError(
            f"{place.shown_path(posixpath.join(place.path, path))} is not {what} ({type(e).__name__}: {e}): restore "
            f"this file, or {removal}, so that the previous backup is used"
        ) from None
