"""The record of erasures: which partitions and rows of a table were erased (`writetime.erasure`), and up to which write
time.

A record is a file of the lake, `erasures/<keyspace>.<table>/<number>.json`. It is not in the table's folder, so that it
stays if this folder is deleted, or restored from an earlier copy. It names a partition only by a keyed hash (HMAC,
RFC 2104, with SHA-256) of the table's name and the serialised key, and rows by that of their partition, and one of the
first clustering values that they have in common. The secret is `erasures/secret`, because every program that adds
changes needs it, on any machine. A program that has it can check whether a known key was erased.

While a record exists, no reader of messages or SSTables adds a change of such a partition or row that is not newer than
its erasure. Nor is a deletion of a range added if both of its bounds are of such rows. A record is written before
anything is erased. Whoever adds changes reads the records after the version that its commit follows, and requires the
number of this version (`ERASED`), which the erasure then raises.
"""

import functools
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import orjson
import pyarrow as pa
from pyarrow import fs

from writetime.changes.clusterings import clustering_decoder
from writetime.changes.model import change_schema
from writetime.changes.position import BEFORE, position_encoder
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
    """The erased partitions and rows of a table: the write time (microseconds) up to which each was erased, by its
    name (`name_of`).
    """

    table: str = ""
    secret: bytes = field(default=b"", repr=False)
    until: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.until)

    @functools.cached_property
    def _with_rows(self) -> set[str]:
        """The names of partitions of which some rows were erased."""
        return {name.partition("/")[0] for name in self.until if "/" in name}

    def name_of(self, key: bytes, first: bytes = b"") -> str:
        """Return the name of a partition, by its serialised key, or of the rows that begin with the clustering values
        of a bound, by the position before them.
        """
        own = self._digest(f"{self.table}\0".encode() + key)
        return f"{own.hex()}/{self._digest(own + first).hex()}" if first else own.hex()

    def _digest(self, data: bytes) -> bytes:
        return hmac.digest(self.secret, data, hashlib.sha256)

    def until_at(self, key: bytes, beginnings: list[bytes]) -> int | None:
        """Return the write time up to which a place of a partition is erased, by the positions before all rows that
        begin with its first clustering value, its first two, and so on; None if it is not.
        """
        names = [self.name_of(key), *(self.name_of(key, first) for first in beginnings)]
        return max((until for name in names if (until := self.until.get(name)) is not None), default=None)

    def left(self, changes: pa.RecordBatch, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        """Yield changes without the parts that are erased. The fields of the batches may differ."""
        until = self._until_of(changes, schema)
        if until.null_count == len(until):
            yield changes
            return
        yield changes.filter(until.is_null())
        for part in parts_after(pa.Table.from_batches([changes]), schema, until):
            yield from part.to_batches()

    def _until_of(self, changes: pa.RecordBatch, schema: TableSchema) -> pa.Array:
        """Return the write time up to which each change is erased; null for one that is not."""
        keys = decoded(changes.column("key")).dictionary_encode()
        names = [self.name_of(key) for key in keys.dictionary.to_pylist()]
        until = pa.array([self.until.get(name) for name in names], pa.int64()).take(keys.indices)
        some = [i for i, name in enumerate(names) if name in self._with_rows]
        if not some:
            return until
        at = np.flatnonzero(np.isin(keys.indices.to_numpy(), some))
        own = changes.select([name for name in ("key", "position", "end") if name in changes.schema.names]).take(at)
        beginnings, found = beginnings_of(schema), until.to_pylist()
        for i, place in zip(at.tolist(), own.to_pylist(), strict=True):
            found[i] = self.until_at(place["key"], beginnings(place["position"], place.get("end")))
        return pa.array(found, pa.int64())


def beginnings_of(schema: TableSchema) -> Callable[[bytes, bytes | None], list[bytes]]:
    """Return a function from the position of a row, or from the bounds of a range, to the positions before all rows
    that begin with its first clustering value, its first two, and so on: those that both bounds have in common.
    """
    decode, encode = clustering_decoder(schema.clustering), position_encoder(schema.clustering)

    def beginnings(position: bytes, end: bytes | None) -> list[bytes]:
        values = decode(position)
        if end is not None:
            same = takewhile(lambda both: both[0] == both[1], zip(values, decode(end), strict=False))
            values = [value for value, _ in same]
        return [encode(values[:count], BEFORE) for count in range(1, len(values) + 1)]

    return beginnings


NO_ERASURES = Erasures()


def newer(changes: pa.Table, schema: TableSchema, until: int) -> pa.Table:
    """Return the parts of changes that were written after a time (microseconds)."""
    return after(conform(changes, change_schema(schema), f"changes of {schema.full_name}"), schema, until)


def parts_after(changes: pa.Table, schema: TableSchema, until: pa.Array) -> list[pa.Table]:
    """Return the parts of changes that were written after a time (microseconds) of each. One without is left out."""
    times = pc.unique(until.drop_null()).to_pylist()
    return [newer(changes.filter(pc.equal(until, pa.scalar(at, pa.int64()))), schema, at) for at in times]


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
    until = _recorded(folder)
    return Erasures(table, _secret_of(folder, make=False), until) if until else NO_ERASURES


def _recorded(folder: Storage) -> dict[str, int]:
    until: dict[str, int] = {}
    for number in numbers_of(folder):
        for name, at in read_record(folder, number).items():
            until[name] = max(at, until.get(name, at))
    return until


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
    """Return the write time (microseconds) up to which each partition, or some rows of one, was erased, by its name.
    Raise a `WritetimeError` if the record is damaged.
    """
    with folder.filesystem().open_input_stream(record_name(number)) as stream:
        data = stream.read()
    try:
        return {str(name): int(until) for name, until in orjson.loads(data)["until"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise WritetimeError(
            f"{folder.address}/{record_name(number)} is damaged ({e}), so it is not known what was erased: restore it "
            "from a copy of the lake"
        ) from None


def all_erasures(table: LakeTable) -> Erasures:
    """Return all erasures of a table that are recorded now. The first call in a lake makes its secret."""
    folder = folder_of(table)
    return Erasures(table.name, _secret_of(folder, make=True), _recorded(folder))


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
