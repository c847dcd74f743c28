"""The live files of a Delta table with their deletion vectors, and commits that mark rows.

delta-rs reads tables with deletion vectors, but writes none and does not show them. So the vectors come from the
actions of the log.
"""

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from writetime.core.errors import WritetimeError
from writetime.delta import commits
from writetime.delta.bucketed_table import ATTEMPTS, FORGET_REMOVED, VECTORS, BucketedTable, Conflict
from writetime.delta.checkpoints import read_checkpoint
from writetime.delta.commits import Action
from writetime.delta.deletion_vectors import DeletionVector
from writetime.delta.parquet import WrittenFile
from writetime.delta.storage import Storage
from writetime.delta.versions import DataFile, TableVersion, file_of

_VECTORS = "deletionVectors"
# What all tables of writer version 2 have.
_BASIC = frozenset({"appendOnly", "invariants"})
# In each of our commits: a digest of the files that it leaves.
_DIGEST = "writetime-files"


@dataclass(frozen=True)
class LiveFile:
    """A file, and its rows that no longer count; `file.rows` is the number of all rows."""

    file: DataFile
    vector: DeletionVector | None

    @property
    def marked(self) -> int:
        """The number of its rows that no longer count."""
        return self.vector.count if self.vector else 0


@dataclass(frozen=True)
class LiveVersion:
    """A version of the table, and its live files by their paths."""

    version: TableVersion
    files: Mapping[str, LiveFile]

    @property
    def rows(self) -> int:
        """The number of rows that count."""
        return sum(each.file.rows - each.marked for each in self.files.values())

    @property
    def is_ours(self) -> bool:
        """Whether the files are those of Writetime's last commit, so that no other program has added, removed, marked
        or restored any.
        """
        return self.version.transaction(_DIGEST) == _digest({path: each.vector for path, each in self.files.items()})


@dataclass(frozen=True)
class ViewCommit:
    """The effect of a commit: files that leave, files that come, and the new vectors of others."""

    remove: Sequence[LiveFile] = ()
    add: Sequence[WrittenFile] = ()
    mark: Sequence[tuple[LiveFile, DeletionVector]] = ()


class LiveFiles:
    """The live files of one table. It follows the table's log, and is for one thread."""

    def __init__(self, table: BucketedTable) -> None:
        self._table = table
        self._storage = table.storage
        self._id = ""
        self._at = -1
        self._files: dict[str, LiveFile] = {}
        # The time at which replaced files may be deleted again after a failure (monotonic seconds).
        self.trims_at = 0.0

    def load(self) -> LiveVersion:
        """Return the newest version.

        Raises:
            WritetimeError: the table cannot be opened, or a file of its log is missing or cannot be read.
        """
        now = self._table.load()
        identity = now.id
        if identity != self._id or now.version < self._at or not self._follow(now.version):
            self._id, self._at, self._files = identity, *self._checkpoint(now.version)
            if not self._follow(now.version):
                raise WritetimeError(f"{self._storage.address}: its log has no commit {self._at + 1}")
        return LiveVersion(now, dict(self._files))

    def commit(
        self,
        before: LiveVersion,
        change: ViewCommit,
        numbers: Mapping[str, int],
        info: Mapping[str, object],
        *,
        data_change: bool = True,
        vectors: bool = True,
    ) -> None:
        """Commit a change.

        Args:
            before: the version that the change was made from.
            change: the change.
            numbers: numbers to store with the commit, by application id.
            info: is stored with the commit, for readers of the log.
            data_change: False if the rows are the same as before.
            vectors: whether the table may have vectors from now on. If not, the change removes all files that have one.

        Raises:
            Conflict: a file of the change, or one of the numbers, has changed since `before`.
        """
        touched = [*change.remove, *(each for each, _ in change.mark)]
        for _ in range(ATTEMPTS):
            now = self.load()
            same = all(now.version.transaction(name) == before.version.transaction(name) for name in numbers)
            # Changes that another program has made since must not count as Writetime's own.
            same = same and (now.is_ours or now.files == before.files)
            if not same or any(now.files.get(each.file.path) != each for each in touched):
                raise Conflict(f"{self._storage.address} has been rewritten by another process: run this again")
            recorded = {**numbers, _DIGEST: _digest(_after(now.files, change))}
            head = _head(self._storage, now.version, info, vectors=vectors)
            actions = [*head, *_actions(self._storage, change, recorded, data_change=data_change)]
            number = now.version.version + 1
            if commits.write_commit(self._storage, number, actions) is not None:
                self._table.checkpoint_after(number)
                return
            time.sleep(random.uniform(0.01, 0.1))
        raise WritetimeError(f"{self._storage.address}: {ATTEMPTS} commits conflicted with others")

    def _follow(self, version: int) -> bool:
        """Advance to a version; return whether the log has all commits up to it."""
        while self._at < version:
            commit = commits.read_commit(self._storage, self._at + 1)
            if commit is None:
                return False
            _apply(self._files, commits.actions_of(self._storage, self._at + 1, commit))
            self._at += 1
        return True

    def removed(self) -> list[tuple[str, DeletionVector | None, int]]:
        """Return the files that the log still lists as removed, each with its vector and the time (milliseconds). They
        include files that got another vector.
        """
        now = self._table.load().version
        at, actions = read_checkpoint(self._storage, now, "remove")
        for version in range(at + 1, now + 1):
            if commit := commits.read_commit(self._storage, version):
                found = commits.actions_of(self._storage, version, commit)
                actions += [each["remove"] for each in found if "remove" in each]
        return [
            (a["path"], DeletionVector.of_action(a.get("deletionVector")), a["deletionTimestamp"] or 0) for a in actions
        ]

    def _checkpoint(self, version: int) -> tuple[int, dict[str, LiveFile]]:
        """Return the last checkpoint up to a version, and the files in it; -1 if there is none."""
        at, rows = read_checkpoint(self._storage, version, "add")
        files: dict[str, LiveFile] = {}
        _apply(files, [{"add": row | {"partitionValues": dict(row["partitionValues"])}} for row in rows])
        return at, files


def has_vectors(version: TableVersion) -> bool:
    """Return whether a version of a table may have deletion vectors."""
    return version.properties.get(VECTORS) == "true"


def _apply(files: dict[str, LiveFile], actions: list[Action]) -> None:
    """Apply actions of one commit: a file that is removed and added with another vector stays."""
    added = []
    for action in actions:
        if "remove" in action:
            files.pop(action["remove"]["path"], None)
        elif "add" in action:
            added.append(action["add"])
    for add in added:
        file = file_of(add)
        files[file.path] = LiveFile(file, DeletionVector.of_action(add.get("deletionVector")))


def _head(storage: Storage, now: TableVersion, info: Mapping[str, object], *, vectors: bool) -> list[Action]:
    """Return the actions that turn the table into one with vectors, or one without them."""
    if has_vectors(now) == vectors:
        return [commits.about(storage, info)]
    wanted = {name: value for name, value in now.properties.items() if name not in FORGET_REMOVED}
    wanted |= {VECTORS: str(vectors).lower(), **(FORGET_REMOVED if vectors else {})}
    metadata, protocol = now.table.metadata(), now.table.protocol()
    described = {
        "id": metadata.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": now.table.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "createdTime": metadata.created_time,
        "configuration": wanted,
    }
    features = protocol.reader_features or [], protocol.writer_features or []
    return [commits.about(storage, info), {"protocol": _protocol(*features, vectors=vectors)}, {"metaData": described}]


def _protocol(reader: Sequence[str], writer: Sequence[str], *, vectors: bool) -> Action:
    """Return the protocol of a table with or without vectors. Keep the features that another program has enabled, such
    as its form of checkpoints.
    """
    own = {_VECTORS} if vectors else set[str]()
    reads = {*reader} - {_VECTORS} | own
    writes = {*writer} - {_VECTORS} | own | _BASIC
    if writes == _BASIC:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    readers = {"minReaderVersion": 3, "readerFeatures": sorted(reads)} if reads else {"minReaderVersion": 1}
    return {**readers, "minWriterVersion": 7, "writerFeatures": sorted(writes)}


def _actions(storage: Storage, change: ViewCommit, numbers: Mapping[str, int], *, data_change: bool) -> list[Action]:
    found = commits.numbers(storage, numbers)
    for each in (*change.remove, *(each for each, _ in change.mark)):
        file = each.file
        removed = commits.removing(storage, file.path, file.bucket, file.size, data_change=data_change)
        found.append({"remove": removed | _named(each.vector)})
    for file in change.add:
        now, about = commits.millis(storage), _statistics(file.rows, None)
        add = commits.adding(file.path, file.bucket, file.size, now, about, data_change=data_change)
        found.append({"add": add})
    for each, vector in change.mark:
        file, about = each.file, _statistics(each.file.rows, vector)
        add = commits.adding(file.path, file.bucket, file.size, file.added_at // 1000, about, data_change=data_change)
        found.append({"add": add | _named(vector)})
    return found


def _after(files: Mapping[str, LiveFile], change: ViewCommit) -> dict[str, DeletionVector | None]:
    """Return the vectors of the live files after a change, by their paths."""
    removed = {each.file.path for each in change.remove}
    found = {path: each.vector for path, each in files.items() if path not in removed}
    return found | {file.path: None for file in change.add} | {each.file.path: vector for each, vector in change.mark}


def _digest(vectors: Mapping[str, DeletionVector | None]) -> int:
    """Return a number that identifies live files with their vectors. Delta stores numbers of 63 bits."""
    named = sorted(
        (path, vector.place if vector else "", vector.offset if vector else 0) for path, vector in vectors.items()
    )
    return int.from_bytes(hashlib.sha256(repr(named).encode()).digest()[:8]) >> 1


def _statistics(rows: int, vector: DeletionVector | None) -> Mapping[str, object]:
    return {"numRecords": rows, "tightBounds": vector is None}


def _named(vector: DeletionVector | None) -> Action:
    return {"deletionVector": vector.action} if vector else {}
