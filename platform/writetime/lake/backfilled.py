"""The SSTables that backfills have taken, so that a later backup costs what is new in it.

An SSTable is known by the table's id, its node, and the size and digest of its data file. Its name does not count, as
generation numbers return, and neither does Statistics.db, which repair rewrites.

Before a backfill reads SSTables, it writes a record of them: `<table>/backfilled/<id>.json`, whose id follows from its
list. The commit of each bucket names the record as its transaction, `backfill/<id>/<bucket>`. So an SSTable is taken in
a bucket exactly if a record has it and the bucket has that transaction. A kill between the two leaves a record that
counts in no bucket. Complete records are merged: one transaction, `backfilled/<id>`, stands for all buckets. Records
count in the generation of the table in which they were written.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import orjson
from pyarrow import fs

from writetime.core.errors import WritetimeError
from writetime.lake.backup import BackupFile
from writetime.lake.commits import put_new
from writetime.lake.table import GENERATION, LakeTable
from writetime.lake.versions import TableVersion

_FOLDER = "backfilled"
# Complete records that are merged into one. Each backfill reads all records.
_MERGED = 8


@dataclass(frozen=True, order=True)
class Taken:
    """An SSTable by its content: `digest` is the data file's. `mark` finds it without the digest."""

    node: str
    size: int
    digest: str
    mark: str = field(compare=False)


@dataclass(frozen=True)
class _Record:
    id: str
    of: str
    files: tuple[Taken, ...]


class Backfilled:
    """The SSTables of one table that are in the lake, at a version of its changes."""

    def __init__(self, table: LakeTable, changes: TableVersion) -> None:
        self._table, self._changes = table, changes
        # A generation begins without changes of SSTables that are taken.
        self._of = f"{table.schema(changes).id} {changes.transaction(GENERATION) or 0}"
        self._records = [record for record in _read_all(table) if record.of == self._of]
        self._buckets: dict[Taken, set[int]] = defaultdict(set)
        for record in self._records:
            done = self._done(record.id)
            for file in record.files:
                self._buckets[file] |= done
        self._by_mark = {(f.node, f.size, f.mark): f for f in self._buckets if f.mark}

    def _done(self, record: str) -> set[int]:
        """Return the buckets in which a record counts."""
        buckets = set(range(self._table.buckets))
        if self._changes.transaction(_merged_id(record)) is not None:
            return buckets
        return {b for b in buckets if self._changes.transaction(app_id(record, b)) is not None}

    def identify(self, files: Iterable[BackupFile]) -> dict[Taken, BackupFile]:
        """Return files by their content, each content once. Digests are read of files whose marks are not known."""
        found: dict[Taken, BackupFile] = {}
        for file in files:
            known = self._by_mark.get((file.node, file.size, file.mark)) if file.mark else None
            found.setdefault(known or Taken(file.node, file.size, file.digest, file.mark), file)
        return found

    def new_in(self, bucket: int, files: Iterable[Taken]) -> tuple[Taken, ...]:
        """Return those of some SSTables that a bucket does not have."""
        return tuple(sorted(file for file in files if bucket not in self._buckets.get(file, ())))

    def record(self, files: Sequence[Taken]) -> str:
        """Write a record of SSTables; return its id."""
        record = _record(self._of, files)
        _write(self._table, record)
        return record.id

    def merge(self, present: Iterable[Taken]) -> None:
        """Merge the complete records if there are many. SSTables that the newest backup of their node no longer has are
        forgotten: if an older backup is given, they are read again, which adds nothing.

        Args:
            present: all SSTables of the backup that was read.
        """
        whole = set(range(self._table.buckets))
        complete = {file for file, buckets in self._buckets.items() if buckets == whole}
        old = [record for record in self._records if complete.issuperset(record.files)]
        if len(old) < _MERGED:
            return
        # With their present marks.
        there = {file: file for file in present}
        nodes = {file.node for file in there if file.node}
        kept = {there.get(f, f) for record in old for f in record.files if f.node not in nodes or f in there}
        merged = _record(self._of, sorted(kept))
        _write(self._table, merged)
        self._table.changes.append([], _merged_id(merged.id), 1)
        filesystem = self._table.storage.filesystem()
        for record in old:
            if record.id != merged.id:
                # Another backfill may have merged them, too.
                with suppress(FileNotFoundError):
                    filesystem.delete_file(_path(record.id))


def app_id(record: str, bucket: int) -> str:
    """Return the transaction of a bucket that has taken the SSTables of a record."""
    return f"backfill/{record}/{bucket}"


def _merged_id(record: str) -> str:
    return f"backfilled/{record}"


def _path(record: str) -> str:
    return f"{_FOLDER}/{record}.json"


def _record(of: str, files: Sequence[Taken]) -> _Record:
    text = repr((of, [(f.node, f.size, f.digest) for f in files]))
    return _Record(hashlib.sha256(text.encode()).hexdigest()[:16], of, tuple(files))


def _write(table: LakeTable, record: _Record) -> None:
    content = {"of": record.of, "files": [[f.node, f.size, f.digest, f.mark] for f in record.files]}
    # One that exists lists the same.
    put_new(table.storage, _path(record.id), orjson.dumps(content))


def _read_all(table: LakeTable) -> list[_Record]:
    filesystem = table.storage.filesystem()
    found = []
    for info in filesystem.get_file_info(fs.FileSelector(_FOLDER, allow_not_found=True)):
        # If it was merged meanwhile, its SSTables are read again, which adds nothing.
        with suppress(FileNotFoundError), filesystem.open_input_stream(info.path) as stream:
            found.append(_parsed(table, info, stream.read()))
    return found


def _parsed(table: LakeTable, info: fs.FileInfo, data: bytes) -> _Record:
    try:
        content: Mapping[str, object] = orjson.loads(data)
        files = content["files"]
        if not isinstance(files, list):
            raise TypeError("a list of files was expected")
        return _Record(info.base_name.removesuffix(".json"), str(content["of"]), tuple(Taken(*file) for file in files))
    except (KeyError, TypeError, ValueError) as e:
        raise WritetimeError(
            f"{table.storage.address}/{info.path} is not a record of a backfill ({type(e).__name__}: {e}): delete this "
            "file; then the SSTables that it lists are read again, which adds nothing"
        ) from None
