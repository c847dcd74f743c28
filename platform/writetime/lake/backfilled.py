"""The SSTables that backfills have taken, so that the cost of a later backup depends on its new SSTables.

An SSTable is identified by the table's id, its node, and the size and digest of its data file. Its name does not count,
because generation numbers return. Statistics.db does not count, because repair rewrites it.

A record lists all SSTables that a bucket has: `<table>/backfilled/<number>.json`. The commit of each bucket names its
record as the number of its transaction, `backfill/<bucket>`. So there are as many transactions as buckets, and buckets
with the same SSTables share a record. A record is written right before the commit. A kill between the two leaves a
record that counts in no bucket. Records count in the generation of the table in which they were written.
"""

import hashlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import orjson
from pyarrow import fs

from writetime.backups.backup import BackupFile
from writetime.core.errors import WritetimeError, reason_of
from writetime.delta.bucketed_table import Conflict
from writetime.delta.commits import put_new
from writetime.delta.parquet import WrittenFile
from writetime.delta.store_clock import clock_fault
from writetime.delta.versions import TableVersion
from writetime.lake.table import GENERATION, LakeTable

log = logging.getLogger(__name__)

_FOLDER = "backfilled"
MOST_LISTED = 8
"""A record that lists more than this many times the SSTables of the backups is made without those that they no longer
have.
"""

KEPT_SECONDS = 3600
"""How long a record that no bucket names stays: a process may be about to commit it."""

# The bits of a record's number: the lower ones come from its content, the upper ones increase.
_CONTENT_BITS = 32


@dataclass(frozen=True, order=True)
class SSTableId:
    """An SSTable by its content: `digest` is that of the data file. `mark` finds the SSTable without the digest."""

    node: str
    size: int
    digest: str
    mark: str = field(compare=False)


class BackfillRecord:
    """The SSTables of one table that are in the lake, at a version of its changes."""

    def __init__(self, table: LakeTable, changes: TableVersion) -> None:
        self._table = table
        # A new generation has no changes of the recorded SSTables.
        self._of = f"{table.schema(changes).id} {changes.transaction(GENERATION) or 0}"
        self._numbers = _numbers(table, changes)
        self._lists = {number: self._read(number) for number in set(self._numbers.values())}
        self._by_mark = {(f.node, f.size, f.mark): f for files in self._lists.values() for f in files if f.mark}
        self._made: dict[tuple[int, tuple[SSTableId, ...]], int] = {}

    def identify(self, files: Iterable[BackupFile]) -> dict[SSTableId, BackupFile]:
        """Return files by their content, each content once. Read the digests only of files with unknown marks."""
        found: dict[SSTableId, BackupFile] = {}
        for file in files:
            known = self._by_mark.get((file.node, file.size, file.mark)) if file.mark else None
            found.setdefault(known or SSTableId(file.node, file.size, file.digest, file.mark), file)
        return found

    def new_in(self, bucket: int, files: Iterable[SSTableId]) -> tuple[SSTableId, ...]:
        """Return the SSTables among `files` that a bucket does not have."""
        taken = self._lists[self._numbers[bucket]]
        return tuple(sorted(file for file in files if file not in taken))

    def commit(
        self,
        bucket: int,
        new: tuple[SSTableId, ...],
        present: Iterable[SSTableId],
        written: Sequence[WrittenFile],
        given: Mapping[str, int],
    ) -> bool:
        """Append the files with the changes of new SSTables, which a bucket does not have; return whether no other
        process has done so. `present` are all SSTables of the backups, and `given` is as for `BucketedTable.append`.
        Raise `Conflict` if another backfill has added SSTables to the bucket meanwhile, or as in
        `BucketedTable.append`.
        """
        before = self._numbers[bucket]
        if (before, new) not in self._made:
            self._made[before, new] = self._write(before, new, present)
        number = self._made[before, new]
        changes = self._table.changes
        if changes.append(written, _app_id(bucket), number, {}, given):
            return True
        if changes.load().transaction(_app_id(bucket)) != number:
            raise Conflict(
                f"{self._table.name}: another backfill has committed bucket {bucket} meanwhile: run it again"
            )
        return False

    def _write(self, before: int, new: Sequence[SSTableId], present: Iterable[SSTableId]) -> int:
        """Write a record that follows another one; return its number."""
        # With their present marks.
        there = {file: file for file in present}
        nodes = {file.node for file in there if file.node}
        listed = self._lists[before]
        if len(listed) > MOST_LISTED * len(there):
            # If an older backup is given, they are read again, which adds nothing.
            listed = {file for file in listed if file.node not in nodes or file in there}
        files = sorted({there.get(file, file) for file in listed} | set(new))
        content = {"of": self._of, "files": [[f.node, f.size, f.digest, f.mark] for f in files]}
        text = repr((self._of, [(f.node, f.size, f.digest) for f in files]))
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[: _CONTENT_BITS // 8], "big")
        number = ((before >> _CONTENT_BITS) + 1 << _CONTENT_BITS) | digest
        # One that exists lists the same.
        put_new(self._table.storage, _path(number), orjson.dumps(content))
        return number

    def _read(self, number: int) -> frozenset[SSTableId]:
        """Return the SSTables of a record. If the record is missing, they are read again, which adds nothing."""
        try:
            with self._table.storage.filesystem().open_input_stream(_path(number)) as stream:
                data = stream.read()
        except FileNotFoundError:
            return frozenset()
        try:
            content: Mapping[str, object] = orjson.loads(data)
            files = content["files"]
            if not isinstance(files, list):
                raise TypeError("a list of files was expected")
            return frozenset(SSTableId(*file) for file in files) if content["of"] == self._of else frozenset()
        except (KeyError, TypeError, ValueError) as e:
            raise WritetimeError(
                f"{self._table.storage.address}/{_path(number)} is not a record of a backfill ({type(e).__name__}: "
                f"{e}): delete this file; then the SSTables that it lists are read again, which adds nothing"
            ) from None


def delete_old_records(table: LakeTable) -> None:
    """Delete the records that no bucket names, an hour after they were written. If that fails, or this machine's clock
    is far ahead, they stay until a later backfill.
    """
    filesystem = table.storage.filesystem()
    named = {_path(number) for number in _numbers(table, table.changes.load()).values()}
    until = time.time_ns() - KEPT_SECONDS * 1_000_000_000
    try:
        if fault := clock_fault(table.changes.storage):
            log.warning("%s: %s", table.name, fault)
            return
        for info in filesystem.get_file_info(fs.FileSelector(_FOLDER, allow_not_found=True)):
            if info.path not in named and (info.mtime_ns or 0) < until:
                # Another backfill may have deleted it, too.
                with suppress(FileNotFoundError):
                    filesystem.delete_file(info.path)
    except OSError as e:
        log.warning("%s: old records of backfills cannot be deleted: %s", table.name, reason_of(e))


def _numbers(table: LakeTable, changes: TableVersion) -> dict[int, int]:
    """Return the number of the record of each bucket, 0 if it has none."""
    return {bucket: changes.transaction(_app_id(bucket)) or 0 for bucket in range(table.buckets)}


def _app_id(bucket: int) -> str:
    return f"backfill/{bucket}"


def _path(number: int) -> str:
    return f"{_FOLDER}/{number:016x}.json"
