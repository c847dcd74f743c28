"""The record of erasures: which partitions of a table were erased (`writetime.erasure`), and up to which write time.

A record is a file of the lake, `erasures/<keyspace>.<table>/<number>.json`. It is not in the table's folder, so that it
stays if this folder is deleted, or restored from an earlier copy. It names a partition only by a keyed hash (HMAC,
RFC 2104, with SHA-256) of the table's name and the serialised key. The secret is `erasures/secret`, because every
program that adds changes needs it, on any machine. A program that has it can check whether a known key was erased.

While a record exists, no reader of messages or SSTables adds a change of such a partition that is not newer than its
erasure. A record is written before anything is erased. Whoever adds changes reads the records after the version that
its commit follows, and requires the number of this version (`ERASED`), which the erasure then raises.
"""

import functools
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import orjson
import pyarrow as pa
from pyarrow import fs

from writetime.changes.model import change_schema
from writetime.core.arrow import decoded, pc
from writetime.core.errors import WritetimeError
from writetime.delta.commits import put_new
from writetime.delta.parquet import conform
from writetime.delta.storage import Storage
from writetime.delta.versions import TableVersion
from writetime.lake.history import after
from writetime.lake.state import erased_of
from writetime.lake.table import LakeTable
from writetime.schema.table import TableSchema

_SECRET = "secret"
_NUMBER = re.compile(r"(\d{8})\.json")


@dataclass(frozen=True)
class Erasures:
    """The erased partitions of a table: the write time (microseconds) up to which each was erased, by its hash."""

    table: str = ""
    secret: bytes = field(default=b"", repr=False)
    until: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.until)

    def hash_of(self, key: bytes) -> str:
        """Return the hash of a serialised partition key."""
        return hmac.digest(self.secret, f"{self.table}\0".encode() + key, hashlib.sha256).hex()

    def left(self, changes: pa.RecordBatch, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        """Yield changes without the parts that are erased. The fields of the batches may differ."""
        keys = decoded(changes.column("key"))
        found = {key: self.until.get(self.hash_of(key)) for key in pc.unique(keys).to_pylist()}
        erased = {key: until for key, until in found.items() if until is not None}
        if not erased:
            yield changes
            return
        yield changes.filter(pc.invert(pc.is_in(keys, value_set=pa.array(list(erased), pa.binary()))))
        for key, until in erased.items():
            own = changes.filter(pc.equal(keys, pa.scalar(key, pa.binary())))
            yield from newer(pa.Table.from_batches([own]), schema, until).to_batches()


NO_ERASURES = Erasures()


def newer(changes: pa.Table, schema: TableSchema, until: int) -> pa.Table:
    """Return the parts of changes that were written after a time (microseconds)."""
    return after(conform(changes, change_schema(schema), f"changes of {schema.full_name}"), schema, until)


def read_erasures(table: LakeTable, changes: TableVersion) -> Erasures:
    """Return the erasures of a table, by a version of its changes that was loaded just now.

    Raises:
        WritetimeError: a record is damaged, or the secret is missing. Then nothing may be added to the table.
    """
    # Each batch asks for them. A table that was created again has another id.
    options = tuple(table.storage.options.items())
    return _read(_lake_of(table), options, table.name, f"{changes.id}/{erased_of(changes)}")


@functools.lru_cache(1024)
def _read(lake: str, options: tuple[tuple[str, str], ...], table: str, _version: str) -> Erasures:
    folder = _folder(lake, dict(options), table)
    until: dict[str, int] = {}
    for number in numbers_of(folder):
        for hashed, at in read_record(folder, number).items():
            until[hashed] = max(at, until.get(hashed, at))
    return Erasures(table, _secret_of(folder, make=False), until) if until else NO_ERASURES


def folder_of(table: LakeTable) -> Storage:
    """Return the folder of a table's records."""
    return _folder(_lake_of(table), table.storage.options, table.name)


def _lake_of(table: LakeTable) -> str:
    return table.storage.address.rpartition("/")[0]


def _folder(lake: str, options: Mapping[str, str], table: str) -> Storage:
    return Storage(lake, options).folder("erasures").folder(table)


def numbers_of(folder: Storage) -> list[int]:
    """Return the numbers of the records in a folder, in order."""
    return sorted(int(match[1]) for info in _listed(folder) if (match := _NUMBER.fullmatch(info.base_name)))


def _listed(folder: Storage, *, recursive: bool = False) -> list[fs.FileInfo]:
    return folder.filesystem().get_file_info(fs.FileSelector("", allow_not_found=True, recursive=recursive))


def record_name(number: int) -> str:
    """Return the name of a record."""
    return f"{number:08}.json"


def read_record(folder: Storage, number: int) -> dict[str, int]:
    """Return the write time (microseconds) up to which each partition was erased, by its hash. Raise a `WritetimeError`
    if the record is damaged.
    """
    with folder.filesystem().open_input_stream(record_name(number)) as stream:
        data = stream.read()
    try:
        return {str(hashed): int(until) for hashed, until in orjson.loads(data)["until"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise WritetimeError(
            f"{folder.address}/{record_name(number)} is damaged ({e}), so it is not known what was erased: restore it "
            "from a copy of the lake"
        ) from None


def hashes(table: LakeTable) -> Erasures:
    """Return erasures without a partition, for the hashes of a table. The first call in a lake makes its secret."""
    return Erasures(table.name, _secret_of(folder_of(table), make=True))


def _secret_of(folder: Storage, *, make: bool) -> bytes:
    of_lake = Storage(folder.root, folder.options).folder("erasures")
    if make and not any(_NUMBER.fullmatch(info.base_name) for info in _listed(of_lake, recursive=True)):
        put_new(of_lake, _SECRET, secrets.token_bytes(32))
    try:
        with of_lake.filesystem().open_input_stream(_SECRET) as stream:
            return stream.read()
    except FileNotFoundError:
        raise WritetimeError(
            f"{of_lake.address}/{_SECRET} is missing, without which the erased rows of {folder.address} are not known: "
            "restore it from a copy of the lake"
        ) from None
