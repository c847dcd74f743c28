"""One Delta table of the lake: its creation, its files by bucket, and commits that a retry does not repeat.

Delta itself stores, for each application id, the number of its last transaction. A commit names both. A writer that
finds its own number there has nothing left to do, and of two that commit at once with one id, Delta rejects the second.
"""

import json
import random
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from writetime.core.errors import Transient, WritetimeError
from writetime.core.extras import WhenUsed
from writetime.core.format_version import FORMAT_VERSION
from writetime.lake.buckets import ALL
from writetime.lake.lake_storage import Storage
from writetime.lake.parquet import PARTITION, WrittenFile

if TYPE_CHECKING:
    import deltalake
    from deltalake import exceptions, transaction
else:
    # Agents import this module, and are installed without deltalake.
    deltalake, exceptions, transaction = map(WhenUsed, ("deltalake", "deltalake.exceptions", "deltalake.transaction"))

BUCKETS = "writetime.buckets"
FORMAT = "writetime.format"
VECTORS = "delta.enableDeletionVectors"
"""The property of a table that may have deletion vectors."""

# Commits per checkpoint. Opening or updating a table reads the commits since the last one, so it costs the same at any
# length of the log.
_CHECKPOINT = {"delta.checkpointInterval": "20"}
ATTEMPTS = 20
"""How often a commit that meets others is tried."""
_RECENT = 8
# Of the Delta protocol: a commit, and a checkpoint in one file, which is how delta-rs writes them.
_LOG_FILE = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)")
# Every commit that removes files has this application id, so that Delta rejects all but one of those that are made at
# once. Delta itself accepts two that remove the same files.
_REWRITE = "writetime-rewrite"


class Conflict(Transient):
    """Another process rewrote the same files first."""


@dataclass(frozen=True)
class DataFile:
    """A file of the table. `size` is in bytes, `added_at` in microseconds; `bucket` may be `ALL`."""

    path: str
    bucket: int
    rows: int
    size: int
    added_at: int


class TableVersion:
    """One version of a Delta table."""

    def __init__(self, table: "deltalake.DeltaTable", open_at: "Callable[[int], deltalake.DeltaTable]") -> None:
        """Hold the present version of a table that may be updated later; `open_at` opens this version again then."""
        self._table = table
        self._open_at = open_at
        self._numbers: dict[str, int | None] = {}
        self.version = table.version()

    @property
    def table(self) -> "deltalake.DeltaTable":
        """The table at this version."""
        if self._table.version() != self.version:
            self._table = self._open_at(self.version)
        return self._table

    @cached_property
    def files(self) -> list[DataFile]:
        """The files, in the order of their paths."""
        actions = pa.table(self.table.get_add_actions(flatten=True))
        if not actions.num_rows:
            return []
        names = ("path", f"partition.{PARTITION}", "num_records", "size_bytes", "modification_time")
        rows = zip(*(actions[name].to_pylist() for name in names), strict=True)
        files = [DataFile(path, bucket, count, size, at * 1000) for path, bucket, count, size, at in rows]
        return sorted(files, key=lambda f: f.path)

    @cached_property
    def by_bucket(self) -> dict[int, list[DataFile]]:
        """The files of each bucket that has any, with the files of all buckets."""
        return by_bucket(self.files, int(self.properties[BUCKETS]))

    @cached_property
    def by_folder(self) -> dict[int, list[DataFile]]:
        """The files of each bucket, and those of all buckets as the bucket `ALL`."""
        return by_folder(self.files)

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The table's own configuration."""
        return self.table.metadata().configuration

    def transaction(self, app_id: str) -> int | None:
        """Return the number of the application's last transaction."""
        if app_id not in self._numbers:
            self._numbers[app_id] = self.table.transaction_version(app_id)
        return self._numbers[app_id]


def by_folder(files: Iterable[DataFile]) -> dict[int, list[DataFile]]:
    """Return the files of each bucket, and those of all buckets as the bucket `ALL`."""
    found: dict[int, list[DataFile]] = {}
    for file in files:
        found.setdefault(file.bucket, []).append(file)
    return found


def by_bucket(files: Iterable[DataFile], buckets: int) -> dict[int, list[DataFile]]:
    """Return the files of each bucket that has any; those of all buckets are in each."""
    found = by_folder(files)
    shared = found.pop(ALL, [])
    return {b: found.get(b, []) + shared for b in (range(buckets) if shared else found)}


@dataclass(frozen=True)
class _Kept:
    """A table that stays open, and the commit of its version, which shows whether it is still the same table."""

    table: "deltalake.DeltaTable"
    version: TableVersion
    commit: bytes


class BucketedTable:
    """A Delta table that is partitioned by the bucket of the token.

    It stays open: the first `load` opens it, and later ones read only what is new in the log. So an object is for one
    thread.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._kept: _Kept | None = None
        # The newest versions that were loaded, as batches ask for the version of the one before.
        self._recent: OrderedDict[int, TableVersion] = OrderedDict()

    def __reduce__(self) -> "tuple[type[BucketedTable], tuple[Storage]]":
        # Another process opens it again.
        return BucketedTable, (self.storage,)

    def exists(self) -> bool:
        """Return whether the table has been created."""
        return deltalake.DeltaTable.is_deltatable(self.storage.address, dict(self.storage.options))

    def create(self, schema: pa.Schema, buckets: int, properties: Mapping[str, str]) -> None:
        """Create the table if it does not exist, with `schema` and the partition column.

        Raises:
            WritetimeError: two columns differ in upper and lower case only, which Delta does not distinguish.
        """
        if self._is_kept():
            return
        full = pa.schema([(PARTITION, pa.int32()), *schema])
        try:
            deltalake.DeltaTable.create(
                self.storage.address,
                schema=deltalake.Schema.from_arrow(full),
                mode="ignore",
                partition_by=[PARTITION],
                configuration={FORMAT: str(FORMAT_VERSION), BUCKETS: str(buckets), **_CHECKPOINT, **properties},
                storage_options=dict(self.storage.options),
                raise_if_key_not_exists=False,
            )
        except exceptions.DeltaError as e:
            raise WritetimeError(f"{self.storage.address} cannot be created: {e}") from None

    def load(self, version: int | None = None) -> TableVersion:
        """Return the newest version, or the requested one.

        Raises:
            WritetimeError: there is no such table or version, or it has another format.
        """
        if version is None:
            return self._newest()
        if version in self._recent and self._is_kept():
            return self._recent[version]
        found = TableVersion(self._open_at(version), self._open_at)
        _require_format(self.storage, found.properties.get(FORMAT))
        return found

    def _open_at(self, version: int | None) -> "deltalake.DeltaTable":
        try:
            return deltalake.DeltaTable(self.storage.address, version, dict(self.storage.options))
        except exceptions.DeltaError as e:
            raise WritetimeError(f"{self.storage.address} cannot be opened as a Delta table: {e}") from None

    def _newest(self) -> TableVersion:
        """Return the newest version, from the table that is open if its log goes on from there."""
        kept = self._kept
        if kept is None or not self._is_kept():
            self._recent.clear()
            table = self._open_at(None)
        elif self._commit_of(kept.version.version + 1) is None:
            return kept.version
        else:
            table = kept.table
            # Before the table goes on: an earlier version is opened again for what it did not read.
            _ = kept.version.files, kept.version.properties
            try:
                table.update_incremental()
            except exceptions.DeltaError:
                # Commits between may be gone.
                table = self._open_at(None)
        self._kept = None
        found = TableVersion(table, self._open_at)
        _require_format(self.storage, found.properties.get(FORMAT))
        commit = self._commit_of(found.version)
        if commit is not None:
            self._kept = _Kept(table, found, commit)
            self._recent[found.version] = found
            if len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
        return found

    def _is_kept(self) -> bool:
        """Return whether the table that stays open is the one in the storage. A table that was removed and created
        again may have any version, but its commits differ.
        """
        return self._kept is not None and self._commit_of(self._kept.version.version) == self._kept.commit

    def _commit_of(self, version: int) -> bytes | None:
        """Return the commit of a version, from its own file in the log; None if it is not there."""
        try:
            with self.storage.filesystem().open_input_stream(f"_delta_log/{version:020d}.json") as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def find(self) -> TableVersion | None:
        """Return the newest version, None if the table has not been created.

        Raises:
            WritetimeError: its folder exists and cannot be opened.
        """
        return self.load() if self._is_kept() or self.exists() else None

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of all rows of the newest version.

        Raises:
            WritetimeError: there is no such table.
        """
        now = self.load()
        if now.properties.get(VECTORS) == "true":
            # Arrow does not know deletion vectors; the query engine of delta-rs does.
            query = deltalake.QueryBuilder().register("rows", now.table)
            names = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
            return pa.table(query.execute(f"SELECT {names} FROM rows").read_all())
        # deltalake's own file system is Python's. Arrow's threads use it even when the program ends; that aborts it.
        return now.table.to_pyarrow_table(columns=list(columns), filesystem=self.storage.filesystem())

    def append(
        self,
        files: Sequence[WrittenFile],
        app_id: str,
        number: int,
        also: Mapping[str, int] | None = None,
        given: Mapping[str, int] | None = None,
    ) -> bool:
        """Add the files of one batch in one commit; return whether it was new.

        Args:
            files: the files that the tasks of the batch have written.
            app_id: the sender of batches, such as one stream.
            number: the number of this batch; the numbers rise. Nothing happens if this one, or a later one, has been
                committed.
            also: other numbers to keep with the commit, by names like `app_id`.
            given: numbers that the table must still have, 0 if none, because the files depend on them.

        Raises:
            Conflict: one of the given numbers has changed.
        """

        def attempt() -> bool:
            now = self.load()
            if (done := now.transaction(app_id)) is not None and done >= number:
                return False
            if any((now.transaction(name) or 0) != wanted for name, wanted in (given or {}).items()):
                raise _conflict(self.storage)
            # The given numbers are written again, so that Delta rejects any other commit that changes them at the same
            # time.
            done_now = _transactions({app_id: number, **(also or {}), **(given or {})})
            self._commit(now, [_added(f, data_change=True) for f in files], done_now, {})
            return True

        return self._retry(attempt)

    def rewrite(
        self,
        before: TableVersion,
        remove: Sequence[DataFile],
        add: Sequence[WrittenFile],
        *,
        data_change: bool,
        info: Mapping[str, object] | None = None,
        also: Mapping[str, int] | None = None,
    ) -> None:
        """Replace files by others in one commit.

        Args:
            before: the version that the new files were made from.
            remove: its files to remove.
            add: the files to add.
            data_change: False if the rows mean the same as before, so that a stream of new rows skips them.
            info: kept with the commit, for readers of the log.
            also: numbers to keep with the commit, by application id.

        Raises:
            Conflict: one of the files, or one of the numbers, has been replaced since `before`. Other commits since do
                no harm.
        """
        milliseconds = int(time.time() * 1000)
        removed = [
            transaction.RemoveAction(f.path, data_change, milliseconds, f.size, {PARTITION: str(f.bucket)})
            for f in remove
        ]
        actions = [_added(f, data_change) for f in add] + removed
        paths = {f.path for f in remove}
        self._retry(lambda: self._rewrite(before, paths, actions, also or {}, info=info or {}))

    def replace(
        self, before: TableVersion, add: Sequence[WrittenFile], schema: pa.Schema, also: Mapping[str, int]
    ) -> None:
        """Replace all files, and all fields, in one commit, including files that were appended since `before`.

        Args:
            before: the version that the new files were made from.
            add: the files to add.
            schema: the fields from now on, without the partition column.
            also: as for `rewrite`.

        Raises:
            Conflict: the table has been rewritten since `before`.
        """
        actions = [_added(f, data_change=True) for f in add]
        fields = deltalake.Schema.from_arrow(pa.schema([(PARTITION, pa.int32()), *schema]))
        self._retry(lambda: self._rewrite(before, set(), actions, also, fields=fields))

    def _rewrite(
        self,
        before: TableVersion,
        removed: Set[str],
        actions: "Sequence[transaction.AddAction | transaction.RemoveAction]",
        also: Mapping[str, int],
        *,
        info: Mapping[str, object] | None = None,
        fields: "deltalake.Schema | None" = None,
    ) -> bool:
        now = self.load()
        if any(now.transaction(app_id) != before.transaction(app_id) for app_id in also):
            raise _conflict(self.storage)
        if now.transaction(_REWRITE) != before.transaction(_REWRITE) and not (
            removed and removed <= {file.path for file in now.files}
        ):
            raise _conflict(self.storage)
        number = (now.transaction(_REWRITE) or 0) + 1
        self._commit(now, actions, _transactions({_REWRITE: number, **also}), info or {}, fields)
        return True

    def _commit(
        self,
        now: TableVersion,
        actions: "Sequence[transaction.AddAction | transaction.RemoveAction]",
        done: "list[transaction.Transaction]",
        info: Mapping[str, object],
        fields: "deltalake.Schema | None" = None,
    ) -> None:
        now.table.create_write_transaction(
            list(actions),
            "overwrite" if fields else "append",
            fields or now.table.schema(),
            [PARTITION],
            commit_properties=deltalake.CommitProperties(dict(info), app_transactions=done),
        )

    def set_property(self, name: str, value: str) -> None:
        """Set a property of the table."""
        self.update_property(name, lambda _: value)

    def update_property(self, name: str, value: Callable[[Mapping[str, str]], str]) -> str:
        """Set a property of the table to a value computed from all of its properties, and return it.

        Of two that do so at once, the later one starts from the value that the other one has set.
        """
        found = ""

        def attempt() -> bool:
            nonlocal found
            now = self.load()
            found = value(now.properties)
            if now.properties.get(name) != found:
                now.table.alter.set_table_properties({name: found}, raise_if_not_exists=False)
            return True

        self._retry(attempt)
        return found

    def transactions_of(self, version: int) -> Mapping[str, int]:
        """Return the numbers that the commit of one version names, by application id: from its own file in the log
        (`txn` actions of the Delta protocol), without the rest of the log. Nothing if there is no such file.

        Numbers of an application never fall, so those of any version are lower bounds of the newest ones.
        """
        actions = [json.loads(line) for line in (self._commit_of(version) or b"").splitlines() if line]
        return {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a}

    def trim_log(self, keep_from: int, hours: float, most_hours: float) -> int:
        """Delete old commits and checkpoints; return how many files they were. A stream commits each second, and each
        commit would be listed for ever otherwise.

        Args:
            keep_from: versions from this one on can still be opened.
            hours: so can versions that were the newest one within these hours.
            most_hours: but none from before these hours.
        """
        filesystem = self.storage.filesystem()
        found = [
            (int(match[1]), match[2] == "checkpoint.parquet", info)
            for info in filesystem.get_file_info(fs.FileSelector("_delta_log"))
            if (match := _LOG_FILE.fullmatch(info.base_name))
        ]
        now, hour = time.time_ns(), 3_600_000_000_000
        until, always = now - round(hours * hour), now - round(most_hours * hour)

        def is_start(version: int, at: int) -> bool:
            return at <= always or (at <= until and version <= keep_from)

        first = max((v for v, whole, info in found if whole and is_start(v, info.mtime_ns)), default=0)
        # In order, so that a reader never finds a gap behind a checkpoint.
        gone = sorted((v, info.path) for v, _, info in found if v < first)
        for _, path in gone:
            filesystem.delete_file(path)
        return len(gone)

    def add_fields(self, schema: pa.Schema) -> None:
        """Add the fields, including nested ones, that the table does not have; they read as null in files written
        before.

        Raises:
            WritetimeError: a field of the table has another type.
        """

        def attempt() -> bool:
            now = self.load()
            have = pa.schema(now.table.schema())
            new = [f for f in schema if f.name not in have.names or not _holds(have.field(f.name).type, f.type)]
            if new:
                fields: list[deltalake.Field] = list(deltalake.Schema.from_arrow(pa.schema(new)).fields)
                now.table.alter.add_columns(fields)
            return True

        self._retry(attempt)

    def _retry(self, attempt: Callable[[], bool]) -> bool:
        fault: exceptions.CommitFailedError | None = None
        for _ in range(ATTEMPTS):
            try:
                return attempt()
            except exceptions.CommitFailedError as e:
                fault = e
                time.sleep(random.uniform(0.01, 0.1))
            except exceptions.DeltaError as e:
                raise WritetimeError(f"{self.storage.address}: {e}") from None
        raise WritetimeError(f"{self.storage.address}: {ATTEMPTS} commits failed, the last one with: {fault}")


def _require_format(storage: Storage, version: str | None) -> None:
    if version != str(FORMAT_VERSION):
        has = "no format version, as before 0.1.0" if version is None else f"format version {version}"
        raise WritetimeError(
            f"{storage.address} has {has}, and this Writetime has format version {FORMAT_VERSION}: use the Writetime "
            "that wrote it, or bring the table in again, under another lake.path or after you have removed its folder"
        )


def _conflict(storage: Storage) -> Conflict:
    return Conflict(f"{storage.address} has been rewritten by another process: run this again")


def _transactions(numbers: Mapping[str, int]) -> "list[transaction.Transaction]":
    return [transaction.Transaction(app_id, number) for app_id, number in numbers.items()]


def _added(file: WrittenFile, data_change: bool) -> "transaction.AddAction":
    statistics: dict[str, object] = {"numRecords": file.rows}
    if file.first_token is not None:
        statistics["minValues"] = {"token": file.first_token}
        statistics["maxValues"] = {"token": file.last_token}
        statistics["nullCount"] = {"token": 0}
    milliseconds = int(time.time() * 1000)
    return transaction.AddAction(
        file.path, file.size, {PARTITION: str(file.bucket)}, milliseconds, data_change, json.dumps(statistics)
    )


def _holds(have: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a type has all the fields of another one."""
    if pa.types.is_struct(wanted) and pa.types.is_struct(have):
        names = {f.name: f.type for f in have}
        return all(f.name in names and _holds(names[f.name], f.type) for f in wanted)
    if pa.types.is_map(wanted) and pa.types.is_map(have):
        return _holds(have.key_type, wanted.key_type) and _holds(have.item_type, wanted.item_type)
    if pa.types.is_list(wanted) and pa.types.is_list(have):
        return _holds(have.value_type, wanted.value_type)
    return have == wanted
