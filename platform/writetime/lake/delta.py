"""One Delta table of the lake: its creation, its files by bucket, and commits that a retry does not repeat.

Delta itself stores, for each application id, the number of its last transaction. A commit names both. A writer that
finds its own number there has nothing left to do, and of two that commit at once with one id, Delta rejects the second.
"""

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow.fs import FileType

from writetime.core.errors import Transient, WritetimeError
from writetime.core.extras import WhenUsed
from writetime.core.format_version import FORMAT_VERSION
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
_ATTEMPTS = 20
# Every commit that removes files has this application id: Delta itself accepts two that remove the same files.
_REWRITE = "writetime-rewrite"


class Conflict(Transient):
    """Another process rewrote the same files first."""


@dataclass(frozen=True)
class DataFile:
    """A file of the table. `size` is in bytes, `added_at` in microseconds."""

    path: str
    bucket: int
    rows: int
    size: int
    added_at: int


class TableVersion:
    """One version of a Delta table."""

    def __init__(self, table: "deltalake.DeltaTable") -> None:
        self.table = table
        self.version = table.version()

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
        """The files of each bucket that has any."""
        found: dict[int, list[DataFile]] = {}
        for file in self.files:
            found.setdefault(file.bucket, []).append(file)
        return found

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The table's own configuration."""
        return self.table.metadata().configuration

    def transaction(self, app_id: str) -> int | None:
        """Return the number of the application's last transaction."""
        return self.table.transaction_version(app_id)


class BucketedTable:
    """A Delta table that is partitioned by the bucket of the token."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def exists(self) -> bool:
        """Return whether the table has been created."""
        return deltalake.DeltaTable.is_deltatable(self.storage.address, dict(self.storage.options))

    def create(self, schema: pa.Schema, buckets: int, properties: Mapping[str, str]) -> None:
        """Create the table if it does not exist, with `schema` and the partition column.

        Raises:
            WritetimeError: two columns differ in upper and lower case only, which Delta does not distinguish.
        """
        full = pa.schema([(PARTITION, pa.int32()), *schema])
        try:
            deltalake.DeltaTable.create(
                self.storage.address,
                schema=deltalake.Schema.from_arrow(full),
                mode="ignore",
                partition_by=[PARTITION],
                configuration={FORMAT: str(FORMAT_VERSION), BUCKETS: str(buckets), **properties},
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
        try:
            found = TableVersion(deltalake.DeltaTable(self.storage.address, version, dict(self.storage.options)))
        except exceptions.DeltaError as e:
            raise WritetimeError(f"{self.storage.address} cannot be opened as a Delta table: {e}") from None
        _require_format(self.storage, found.properties.get(FORMAT))
        return found

    def is_newest(self, version: int) -> bool:
        """Return whether the log has a version, and not the next one. It reads no file of the log."""
        log = [f"_delta_log/{number:020d}.json" for number in (version, version + 1)]
        present, next_one = (info.type == FileType.File for info in self.storage.filesystem().get_file_info(log))
        return present and not next_one

    def find(self) -> TableVersion | None:
        """Return the newest version, None if the table has not been created.

        Raises:
            WritetimeError: its folder exists and cannot be opened.
        """
        return self.load() if self.exists() else None

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of all rows of the newest version.

        Raises:
            WritetimeError: there is no such table.
        """
        # deltalake's own file system is Python's. Arrow's threads use it even when the program ends; that aborts it.
        return self.load().table.to_pyarrow_table(columns=list(columns), filesystem=self.storage.filesystem())

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
            Conflict: the table has been rewritten since `before`. Files that were appended since do no harm.
        """
        milliseconds = int(time.time() * 1000)
        removed = [
            transaction.RemoveAction(f.path, data_change, milliseconds, f.size, {PARTITION: str(f.bucket)})
            for f in remove
        ]
        actions = [_added(f, data_change) for f in add] + removed
        self._retry(lambda: self._rewrite(before, actions, also or {}, info or {}))

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
            Conflict: as `rewrite` raises it.
        """
        actions = [_added(f, data_change=True) for f in add]
        fields = deltalake.Schema.from_arrow(pa.schema([(PARTITION, pa.int32()), *schema]))
        self._retry(lambda: self._rewrite(before, actions, also, {}, fields))

    def _rewrite(
        self,
        before: TableVersion,
        actions: "Sequence[transaction.AddAction | transaction.RemoveAction]",
        also: Mapping[str, int],
        info: Mapping[str, object],
        fields: "deltalake.Schema | None" = None,
    ) -> bool:
        now = self.load()
        if any(now.transaction(app_id) != before.transaction(app_id) for app_id in (_REWRITE, *also)):
            raise _conflict(self.storage)
        number = (before.transaction(_REWRITE) or 0) + 1
        self._commit(now, actions, _transactions({_REWRITE: number, **also}), info, fields)
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
        try:
            with self.storage.filesystem().open_input_stream(f"_delta_log/{version:020d}.json") as stream:
                actions = [json.loads(line) for line in stream.read().splitlines() if line]
        except FileNotFoundError:
            return {}
        return {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a}

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
        for _ in range(_ATTEMPTS):
            try:
                return attempt()
            except exceptions.CommitFailedError as e:
                fault = e
                time.sleep(random.uniform(0.01, 0.1))
            except exceptions.DeltaError as e:
                raise WritetimeError(f"{self.storage.address}: {e}") from None
        raise WritetimeError(f"{self.storage.address}: {_ATTEMPTS} commits failed, the last one with: {fault}")


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
