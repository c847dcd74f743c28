"""A version of a Delta table, with its files. The actions of a commit give the next version, so a stream of commits is
followed without reading the rest of the log again.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from writetime.core.extras import WhenUsed
from writetime.delta.buckets import ALL
from writetime.delta.commits import Action
from writetime.delta.parquet import PARTITION

if TYPE_CHECKING:
    import deltalake
    from deltalake import exceptions
else:
    # Agents import this module, and are installed without deltalake.
    exceptions = WhenUsed("deltalake.exceptions")

BUCKETS = "writetime.buckets"
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
    """A file of the table. `size` is in bytes, `added_at` in microseconds; `bucket` may be `ALL`."""

    path: str
    bucket: int
    rows: int
    size: int
    added_at: int


@dataclass
class DeltaSnapshot:
    """A version that delta-rs has opened. Later versions share its schema and properties, until these change."""

    table: "deltalake.DeltaTable"
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
        """The files by their paths."""
        actions = pa.table(self.table.get_add_actions(flatten=True))
        if not actions.num_rows:
            return {}
        names = ("path", f"partition.{PARTITION}", "num_records", "size_bytes", "modification_time")
        rows = zip(*(actions[name].to_pylist() for name in names), strict=True)
        return {path: DataFile(path, _bucket(bucket), count, size, at * 1000) for path, bucket, count, size, at in rows}

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
        return sorted(self._by_path.values(), key=lambda f: f.path)

    @property
    def file_count(self) -> int:
        """The number of files."""
        return len(self._by_path)

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
        files, numbers = dict(self._by_path), dict(self._numbers)
        new: list[Action] = []
        for action in actions:
            if "remove" in action:
                files.pop(unquote(action["remove"]["path"]), None)
            elif "add" in action:
                new.append(action["add"])
            elif "txn" in action:
                numbers[action["txn"]["appId"]] = action["txn"]["version"]
            elif "metaData" in action or "protocol" in action:
                return None
        # A file that gets another deletion vector is removed and added.
        for add in new:
            file = file_of(add | {"path": unquote(add["path"])})
            files[file.path] = file
        return TableVersion(self._opened, self._open_at, (self.version + 1, files, numbers))

    @property
    def _by_path(self) -> Mapping[str, DataFile]:
        return self._opened.files if self._paths is None else self._paths


def file_of(add: Action) -> DataFile:
    """Return the file that an action adds, by its path as it is in the log."""
    rows = json.loads(add["stats"])["numRecords"] if add.get("stats") else 0
    bucket = _bucket(add["partitionValues"][PARTITION])
    return DataFile(add["path"], bucket, rows, add["size"], add["modificationTime"] * 1000)


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
