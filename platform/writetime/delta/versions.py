"""A version of a Delta table, with its files. The actions of a commit give the next version, so a stream of commits is
followed without reading the rest of the log again.

delta-rs opens a version. It does not return the deletion vectors of its files, so the files of a table that may have
vectors come from the checkpoint and the commits of the log.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from writetime.core.errors import WritetimeError
from writetime.core.extras import WhenUsed
from writetime.delta.buckets import ALL
from writetime.delta.checkpoints import read_checkpoint
from writetime.delta.commits import Action, actions_of, read_commit
from writetime.delta.deletion_vectors import DeletionVector
from writetime.delta.parquet import PARTITION
from writetime.delta.storage import Storage

if TYPE_CHECKING:
    import deltalake
    from deltalake import exceptions
else:
    # Agents import this module, and are installed without deltalake.
    exceptions = WhenUsed("deltalake.exceptions")

BUCKETS = "writetime.buckets"
VECTORS = "delta.enableDeletionVectors"
"""The property of a table that may have deletion vectors."""
VECTORS_FEATURE = "deletionVectors"
"""The feature of a table that has, or had, deletion vectors (Delta's protocol)."""
# The name of a transaction with the digest of a commit follows that of the one with its number.
_DIGEST = "/commit"


class CommitId(NamedTuple):
    """A commit of a Delta table: its number, and the digest of its file, 0 if it is not known.

    A table that loses its newest commits, or is restored from a copy, gives their numbers to other commits. So a number
    alone does not identify a commit.
    """

    version: int
    digest: int

    def numbers(self, name: str) -> dict[str, int]:
        """Return the transaction numbers by which a commit of another table records this one."""
        return {name: self.version, f"{name}{_DIGEST}": self.digest}


@dataclass(frozen=True)
class DataFile:
    """A file of the table. `size` is in bytes, `added_at` in microseconds; `bucket` may be `ALL`. `rows` is the number
    of all rows, and `vector` names those that no longer count. `log_path` is the path as the log has it, if another
    program wrote it with escapes.
    """

    path: str
    bucket: int
    rows: int
    size: int
    added_at: int
    vector: DeletionVector | None = None
    log_path: str = field(default="", compare=False)

    @property
    def marked(self) -> int:
        """The number of its rows that no longer count."""
        return self.vector.count if self.vector else 0


@dataclass
class DeltaSnapshot:
    """A version that delta-rs has opened. Later versions share its schema and properties, until these change."""

    table: "deltalake.DeltaTable"
    storage: Storage
    _numbers: dict[str, int | None] = field(default_factory=dict)

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The table's own configuration."""
        return self.table.metadata().configuration

    @cached_property
    def fields(self) -> pa.Schema:
        """The table's fields."""
        return pa.schema(self.table.schema())

    @cached_property
    def id(self) -> str:
        """The table's id."""
        return str(self.table.metadata().id)

    @cached_property
    def files(self) -> dict[str, DataFile]:
        """The files by their paths.

        Raises:
            WritetimeError: a file of the log is missing or cannot be read.
        """
        if VECTORS_FEATURE in (self.table.protocol().reader_features or []):
            return self._files_with_vectors()
        actions = pa.table(self.table.get_add_actions(flatten=True))
        if not actions.num_rows:
            return {}
        names = ("path", f"partition.{PARTITION}", "num_records", "size_bytes", "modification_time")
        rows = zip(*(actions[name].to_pylist() for name in names), strict=True)
        files = [
            DataFile(unquote(path), _bucket(bucket), count, size, at * 1000, log_path=path)
            for path, bucket, count, size, at in rows
        ]
        return {file.path: file for file in files}

    def _files_with_vectors(self) -> dict[str, DataFile]:
        version = self.table.version()
        at, rows = read_checkpoint(self.storage, version, "add")
        files: dict[str, DataFile] = {}
        _apply(files, [{"add": row | {"partitionValues": dict(row["partitionValues"])}} for row in rows])
        for number in range(at + 1, version + 1):
            commit = read_commit(self.storage, number)
            if commit is None:
                raise WritetimeError(f"{self.storage.address}: its log has no commit {number}")
            _apply(files, actions_of(self.storage, number, commit))
        return files

    def transaction(self, app_id: str, open_later: "Callable[[], deltalake.DeltaTable]") -> int | None:
        """Return the number of the application's last transaction; it is the same in the version that `open_later`
        opens.
        """
        if app_id not in self._numbers:
            try:
                number = self.table.transaction_version(app_id)
            except exceptions.DeltaError:
                # delta-rs reads the log of this version, which may have been trimmed since.
                number = open_later().transaction_version(app_id)
            self._numbers[app_id] = number
        return self._numbers[app_id]


class TableVersion:
    """One version of a Delta table: one that delta-rs has opened, or one that follows it by the commits since."""

    def __init__(
        self,
        opened: DeltaSnapshot,
        open_at: "Callable[[int], deltalake.DeltaTable]",
        since: "tuple[int, Mapping[str, DataFile], Mapping[str, int]] | None" = None,
    ) -> None:
        """Store a version. `open_at` opens a version. `since` has the number of this version, its files, and the
        transaction numbers of the commits since the version that is open.
        """
        self._opened = opened
        self._open_at = open_at
        self.version = opened.table.version() if since is None else since[0]
        self._paths = None if since is None else since[1]
        self._numbers: Mapping[str, int] = {} if since is None else since[2]
        self.digest = 0
        """The digest of the commit of this version, 0 if its file is not known."""

    @property
    def commit_id(self) -> CommitId:
        """The commit of this version."""
        return CommitId(self.version, self.digest)

    @cached_property
    def table(self) -> "deltalake.DeltaTable":
        """The table at this version, as delta-rs has it. Each caller gets its own, because some methods advance it."""
        return self._open_at(self.version)

    @cached_property
    def files(self) -> list[DataFile]:
        """The files, in the order of their paths."""
        return sorted(self.by_path.values(), key=lambda f: f.path)

    @property
    def by_path(self) -> Mapping[str, DataFile]:
        """The files by their paths."""
        return self._opened.files if self._paths is None else self._paths

    @cached_property
    def rows(self) -> int:
        """The number of rows that count."""
        return sum(file.rows - file.marked for file in self.by_path.values())

    @property
    def has_vectors(self) -> bool:
        """Whether rows may be marked by deletion vectors from now on."""
        return self.properties.get(VECTORS) == "true"

    @cached_property
    def by_bucket(self) -> dict[int, list[DataFile]]:
        """The files of each bucket that has any, with the files of all buckets."""
        return by_bucket(self.files, int(self.properties[BUCKETS]))

    @cached_property
    def by_folder(self) -> dict[int, list[DataFile]]:
        """The files of each bucket, and those of all buckets as the bucket `ALL`."""
        return by_folder(self.files)

    @property
    def id(self) -> str:
        """The table's id."""
        return self._opened.id

    @property
    def fields(self) -> pa.Schema:
        """The table's fields."""
        return self._opened.fields

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's own configuration."""
        return self._opened.properties

    def transaction(self, app_id: str) -> int | None:
        """Return the number of the application's last transaction."""
        found = self._numbers.get(app_id)
        if found is None:
            found = self._opened.transaction(app_id, lambda: self._open_at(self.version))
        return found

    def commit_of(self, name: str) -> CommitId | None:
        """Return the commit of another table that this version records under a name; None if it records none."""
        version = self.transaction(name)
        return None if version is None else CommitId(version, self.transaction(f"{name}{_DIGEST}") or 0)

    def followed_by(self, actions: Sequence[Action]) -> "TableVersion | None":
        """Return the next version, by the actions of its commit; None if these change the table itself."""
        if any("metaData" in action or "protocol" in action for action in actions):
            return None
        files, numbers = dict(self.by_path), dict(self._numbers)
        _apply(files, actions)
        numbers |= {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a}
        return TableVersion(self._opened, self._open_at, (self.version + 1, files, numbers))


def _apply(files: dict[str, DataFile], actions: Iterable[Action]) -> None:
    """Apply the actions of one commit to files by their paths. A file that gets another deletion vector is removed and
    added.
    """
    added = []
    for action in actions:
        if "remove" in action:
            files.pop(unquote(action["remove"]["path"]), None)
        elif "add" in action:
            added.append(_file_of(action["add"]))
    files |= {file.path: file for file in added}


def _file_of(add: Action) -> DataFile:
    """Return the file that an action of the log adds."""
    rows = json.loads(add["stats"])["numRecords"] if add.get("stats") else 0
    bucket = _bucket(add["partitionValues"][PARTITION])
    at, vector = add["modificationTime"] * 1000, DeletionVector.of_action(add.get("deletionVector"))
    return DataFile(unquote(add["path"]), bucket, rows, add["size"], at, vector, add["path"])


def _bucket(value: str | int | None) -> int:
    """Return the bucket of a file. Another program may write rows without one."""
    return ALL if value is None else int(value)


def by_folder(files: Iterable[DataFile]) -> dict[int, list[DataFile]]:
    """Return the files of each bucket, and those of all buckets as the bucket `ALL`."""
    found: dict[int, list[DataFile]] = {}
    for file in files:
        found.setdefault(file.bucket, []).append(file)
    return found


def by_bucket(files: Iterable[DataFile], buckets: int) -> dict[int, list[DataFile]]:
    """Return the files of each bucket that has any; those of all buckets are in each."""
    return by_part(files, buckets, buckets)


def by_part(files: Iterable[DataFile], parts: int, buckets: int) -> dict[int, list[DataFile]]:
    """Return the files of each equal part of the token range that has files, like `by_bucket`. A part has several
    buckets.
    """
    found: dict[int, list[DataFile]] = {}
    for bucket, own in by_folder(files).items():
        found.setdefault(ALL if bucket == ALL else bucket * parts // buckets, []).extend(own)
    shared = found.pop(ALL, [])
    return {part: found.get(part, []) + shared for part in (range(parts) if shared else found)}
