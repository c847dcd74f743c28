"""One Delta table of the lake: its creation, its files by bucket, and commits that a retry does not repeat.

Delta stores the number of the last transaction for each application id. A commit names both. If a writer finds its own
number there, it has nothing left to do. If two programs commit at once, the store accepts one, and the other one reads
the log again.

delta-rs opens tables, creates them and their checkpoints, adds fields and changes properties. Each commit of files is
a `TableChange`, which `commits.write_commit` writes: delta-rs (1.6) names no deletion vectors, and with it a commit
costs 7 ms of CPU, and reading the log after it 10 ms, several times the cost of the rest of a small batch.
"""

import logging
import random
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from writetime.core.errors import Transient, WritetimeError, plain_text
from writetime.core.extras import WhenUsed
from writetime.core.format_version import FORMAT_VERSION
from writetime.core.outages import kind_of
from writetime.delta import commits
from writetime.delta.checkpoints import HINT, seal_checkpoint
from writetime.delta.log_repair import fault_in_log, require_sound_log
from writetime.delta.parquet import PARTITION, Unreadable, WrittenFile, remedy_of
from writetime.delta.storage import Storage
from writetime.delta.store_clock import clock_fault
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import BUCKETS, CommitId, DeltaSnapshot, TableVersion

if TYPE_CHECKING:
    import deltalake
    from deltalake import exceptions
else:
    # Agents import this module, and are installed without deltalake.
    deltalake, exceptions = WhenUsed("deltalake"), WhenUsed("deltalake.exceptions")

FORMAT = "writetime.format"

CHECKPOINT_EVERY = 20
"""Commits per checkpoint. Opening or updating a table reads the commits since the last one, so it costs the same at any
length of the log.
"""
_CHECKPOINT = {"delta.checkpointInterval": str(CHECKPOINT_EVERY)}
ATTEMPTS = 20
"""The number of attempts of a commit that conflicts with others."""
ERASED = "erased"
"""The number of a commit from which on a table has no value of the rows that were erased (`writetime.erasure`). Each
run of an erasure has a larger one. No change that was made from a version with another number takes effect, because it
may have such values.
"""
_RECENT = 32
# A table that is further behind is opened again, from its last checkpoint.
_FOLLOWED = 100
_REASON_CHARACTERS = 200
_log = logging.getLogger(__name__)
# Names in the Delta protocol: of a commit, and of a checkpoint in one file, as delta-rs writes it.
_LOG_FILE = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)")


class Conflict(Transient):
    """Another process rewrote the same files first."""


class _Taken(Exception):
    """Another program made the commit with this number."""


def is_delta_table(storage: Storage) -> bool:
    """Return whether a folder is a Delta table. If it is, at most two files are requested, whatever the length of the
    log.

    Raises:
        WritetimeError: the store refuses access, such as without credentials, an option of it is invalid, or it does
            not answer.
    """
    try:
        # delta-rs has no file system for an unknown kind of store.
        with suppress(exceptions.DeltaError):
            filesystem = storage.filesystem()
            # A log has its first commit until it is trimmed, which needs a checkpoint.
            if any(filesystem.get_file_info(path).is_file for path in (HINT, commits.commit_name(0))):
                return True
        # Another program may have written the log. This lists all of it.
        return deltalake.DeltaTable.is_deltatable(storage.address, dict(storage.options))
    except OSError as e:
        how = "" if storage.is_local else " with lake.storage_options"
        raise kind_of(e)(f"{storage.address} cannot be opened{how}: {plain_text(e)}") from None


class BucketedTable:
    """A Delta table that is partitioned by the bucket of the token.

    The table stays open: the first `load` opens it, and later ones read only the new commits of the log. So an object
    is for one thread.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        # The newest known version, and its commit, which shows whether it is still the same table.
        self._kept: tuple[TableVersion, bytes] | None = None
        # The newest versions that were loaded, as batches load the version of the previous batch.
        self._recent: OrderedDict[int, TableVersion] = OrderedDict()
        # Folders whose names are known to be durable.
        self._durable_folders: set[str] = set()

    def __reduce__(self) -> "tuple[type[BucketedTable], tuple[Storage]]":
        # Another process opens it again.
        return BucketedTable, (self.storage,)

    def exists(self) -> bool:
        """Return whether the table has been created.

        Raises:
            WritetimeError: as `is_delta_table`.
        """
        return is_delta_table(self.storage)

    def create(self, schema: pa.Schema, buckets: int, properties: Mapping[str, str]) -> None:
        """Create the table if it does not exist, with `schema` and the partition column.

        Raises:
            WritetimeError: two columns differ in upper and lower case only, which Delta does not distinguish.
        """
        # Also if its log no longer begins with its first commit.
        if self._is_kept() or self.exists():
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
            raise kind_of(e)(f"{self.storage.address} cannot be created: {plain_text(e)}") from None
        self._sync_commit(0)
        for folder in ("", "..", "../.."):
            self.storage.sync(folder)

    def load(self, version: int | None = None) -> TableVersion:
        """Return the newest version, or the requested one.

        Raises:
            WritetimeError: there is no such table or version, or it has another format.
        """
        if version is None:
            return self._newest(is_kept=self._is_kept())
        if version in self._recent and self._is_kept():
            return self._recent[version]
        found = TableVersion(DeltaSnapshot(self._open_at(version), self.storage), self._open_at)
        _require_format(self.storage, found.properties.get(FORMAT))
        found.digest = self._digest(version)
        return found

    def has_commit(self, commit: CommitId, now: TableVersion) -> bool:
        """Return whether a commit that another table has recorded is one of this table, whose version `now` was loaded
        just now. At most one commit is read. If its file was trimmed, or its digest was not recorded, its number
        decides.
        """
        if commit.version > now.version and commit.version > self.load().version:
            return False
        known = now if commit.version == now.version else self._recent.get(commit.version)
        digest = self._digest(commit.version) if known is None else known.digest
        return 0 in {digest, commit.digest} or digest == commit.digest

    def _digest(self, version: int) -> int:
        commit = commits.read_commit(self.storage, version)
        return 0 if commit is None else commits.digest_of(commit)

    def _open_at(self, version: int | None) -> "deltalake.DeltaTable":
        try:
            return deltalake.DeltaTable(self.storage.address, version, dict(self.storage.options))
        except exceptions.DeltaError as e:
            # delta-rs adds the structures of its listing, or a trace of its calls.
            reason, kind = plain_text(e).partition("\n")[0][:_REASON_CHARACTERS], kind_of(e)
            remedy = None if kind is Transient else remedy_of(self.storage, of_log=True)
            rest = f"; if its log is damaged, {remedy}" if remedy else ""
            raise kind(f"{self.storage.address} cannot be opened as a Delta table: {reason}{rest}") from None

    def _newest(self, *, is_kept: bool) -> TableVersion:
        """Return the newest version: the last known one with the commits since, or the table opened again."""
        if not is_kept:
            self._kept = None
            self._recent.clear()
            self._durable_folders.clear()
            return self._open()
        assert self._kept
        before, _ = self._kept
        found = before
        for _ in range(_FOLLOWED):
            commit = commits.read_commit(self.storage, found.version + 1)
            if commit is None:
                if found is not before:
                    # The program that made the commit may have ended before its name was durable.
                    self.storage.sync("_delta_log")
                return found
            following = found.followed_by(commits.actions_of(self.storage, found.version + 1, commit))
            if following is None:
                break
            found = following
            self._keep(found, commit)
        return self._open()

    def _open(self) -> TableVersion:
        require_sound_log(self.storage)
        try:
            found = TableVersion(DeltaSnapshot(self._open_at(None), self.storage), self._open_at)
        except Transient:
            raise
        except WritetimeError as e:
            raise Unreadable(fault_in_log(self.storage) or str(e)) from None
        self.storage.sync("_delta_log")
        _require_format(self.storage, found.properties.get(FORMAT))
        # Its log may begin after its commit.
        commit = commits.read_commit(self.storage, found.version)
        if commit is not None:
            self._keep(found, commit)
        return found

    def _keep(self, found: TableVersion, commit: bytes) -> None:
        found.digest = commits.digest_of(commit)
        self._kept = found, commit
        self._recent[found.version] = found
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def _is_kept(self) -> bool:
        """Return whether the table in the storage is still the known one. A table that was removed and created again
        may have any version, but its commits differ.
        """
        if self._kept is None:
            return False
        found, commit = self._kept
        return commits.read_commit(self.storage, found.version) == commit

    @property
    def known_files(self) -> int | None:
        """The number of files of the newest version that was loaded, if it is known. Nothing is read for this."""
        return None if self._kept is None else len(self._kept[0].by_path)

    def find(self) -> TableVersion | None:
        """Return the newest version, None if the table has not been created.

        Raises:
            WritetimeError: its folder exists and cannot be opened.
        """
        is_kept = self._is_kept()
        return self._newest(is_kept=is_kept) if is_kept or self.exists() else None

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of all rows of the newest version.

        Raises:
            WritetimeError: there is no such table.
        """
        now = self.load()
        if now.has_vectors:
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
            number: the number of this batch. Numbers increase. Nothing happens if this or a later number has been
                committed.
            also: other numbers to store with the commit, by names like `app_id`.
            given: numbers that the table must still have (0 if none), because the files depend on them.

        Raises:
            Conflict: one of the given numbers has changed.
        """

        def attempt() -> bool:
            now = self.load()
            if (done := now.transaction(app_id)) is not None and done >= number:
                return False
            if any((now.transaction(name) or 0) != wanted for name, wanted in (given or {}).items()):
                raise self.conflict()
            self._commit(now, TableChange(add=files), {app_id: number, **(also or {})}, {})
            return True

        return self._retry(attempt)

    def commit(
        self,
        before: TableVersion,
        change: TableChange,
        numbers: Mapping[str, int] | None = None,
        *,
        numbers_after: Callable[[TableVersion], Mapping[str, int]] | None = None,
        info: Mapping[str, object] | None = None,
    ) -> None:
        """Make a change, which was made from the version `before`, in one commit: (1) open the newest version, (2)
        require that other commits since `before` have not changed the same, (3) make the names of new files durable,
        (4) write the commit under the next number, or begin again if another commit has it, (5) write a checkpoint if
        one is due.

        The commit has the `numbers` by application id, those that `numbers_after` returns by the version that it
        follows, and `info` for readers of the log.

        Raises:
            Conflict: a file of the change, or one of the numbers, has changed since `before`. Other commits since then
                do not matter.
        """
        wanted = numbers or {}

        def attempt() -> bool:
            now = self.load()
            self._require_same(before, now, change, wanted)
            self._commit(now, change, {**wanted, **(numbers_after(now) if numbers_after else {})}, info or {})
            return True

        self._retry(attempt)

    def replace(
        self,
        before: TableVersion,
        add: Sequence[WrittenFile],
        schema: pa.Schema,
        also: Mapping[str, int],
        *,
        numbers_after: Callable[[TableVersion], Mapping[str, int]] | None = None,
    ) -> None:
        """Replace all files, including those that were appended since the version `before`, by files that were made
        from it, and all fields by those of `schema`, which lacks the partition column. It is one commit, with the
        numbers `also` by application id, and those of `numbers_after`, as in `commit`.

        Raises:
            Conflict: the table has been rewritten, or has got other fields, since `before`.
        """

        def attempt() -> bool:
            now = self.load()
            self._require_same(before, now, TableChange(before.files), also)
            if now.fields != before.fields:
                raise self.conflict()
            numbers = {**also, **(numbers_after(now) if numbers_after else {})}
            self._commit(now, TableChange(now.files, add, fields=schema), numbers, {})
            return True

        self._retry(attempt)

    def _require_same(
        self, before: TableVersion, now: TableVersion, change: TableChange, numbers: Mapping[str, int]
    ) -> None:
        found = (now.by_path.get(file.path) for file in change.touched)
        is_touched = any(
            file is None or file.vector != wanted.vector for file, wanted in zip(found, change.touched, strict=True)
        )
        try:
            is_other = is_touched or any(
                now.transaction(name) != before.transaction(name) for name in (ERASED, *numbers)
            )
        except Transient:
            raise
        except WritetimeError:
            # An erasure has deleted the log of that version.
            is_other = True
        if is_other:
            raise self.conflict()

    def _commit(
        self, now: TableVersion, change: TableChange, numbers: Mapping[str, int], info: Mapping[str, object]
    ) -> None:
        """Commit after a version.

        Raises:
            _Taken: another commit has the next number.
        """
        self._sync_names(change)
        head = [commits.about(self.storage, info), *commits.numbers(self.storage, numbers)]
        actions = [*head, *change.actions(self.storage, now)]
        written = commits.write_commit(self.storage, now.version + 1, actions)
        if written is None:
            raise _Taken
        following = now.followed_by(actions)
        if following is not None and self._kept is not None and self._kept[0] is now:
            self._keep(following, written)
        self.checkpoint_after(now.version + 1)

    def _sync_names(self, change: TableChange) -> None:
        """Make the names of new files durable, and those of new folders."""
        folders = {file.path.rpartition("/")[0] for file in change.add}
        # Files of vectors are in the folder of the table.
        for folder in folders | ({""} if change.mark or not folders <= self._durable_folders else set()):
            self.storage.sync(folder)
        self._durable_folders |= folders

    def conflict(self) -> Conflict:
        """Return the error that another process was first."""
        return Conflict(f"{self.storage.address} has been rewritten by another process: run this again")

    def checkpoint_after(self, version: int) -> None:
        """Write a checkpoint after a commit, if one is due.

        By a clock that is far ahead, none is written: it would leave out files that were removed a moment ago, and a
        vacuum by any other machine would delete these.
        """
        if version % CHECKPOINT_EVERY == 0:
            if fault := clock_fault(self.storage):
                _log.warning("%s: no checkpoint is written: %s", self.storage.address, fault)
                return
            try:
                self.write_checkpoint(version)
            except (WritetimeError, OSError) as e:
                # The commit itself succeeded, and the next checkpoint will have it.
                _log.warning("%s: the checkpoint %d cannot be written: %s", self.storage.address, version, e)

    def write_checkpoint(self, version: int) -> None:
        """Write the checkpoint of a version. Raise a `WritetimeError` or an `OSError` if this fails."""
        try:
            self._open_at(version).create_checkpoint()
        except exceptions.DeltaError as e:
            raise kind_of(e)(f"{self.storage.address}: {plain_text(e)}") from None
        seal_checkpoint(self.storage, version)

    def _finish(self, version: int) -> None:
        """Make a commit by delta-rs durable, and write a checkpoint if one is due."""
        self._sync_commit(version)
        self.checkpoint_after(version)

    def _sync_commit(self, version: int) -> None:
        self.storage.sync(commits.commit_name(version))
        self.storage.sync("_delta_log")

    def set_property(self, name: str, value: str) -> None:
        """Set a property of the table."""
        self.update_property(name, lambda _: value)

    def update_property(self, name: str, value: Callable[[Mapping[str, str]], str]) -> str:
        """Set a property of the table to a value computed from all of its properties, and return it.

        If two processes do this at once, the later one starts from the value that the other one has set.
        """
        found = ""

        def attempt() -> bool:
            nonlocal found
            now = self.load()
            found = value(now.properties)
            if now.properties.get(name) != found:
                now.table.alter.set_table_properties(
                    {name: found}, raise_if_not_exists=False, post_commithook_properties=_only_commit()
                )
                self._finish(now.table.version())
            return True

        self._retry(attempt)
        return found

    def raise_property(self, name: str, value: int) -> None:
        """Set a property of the table to a number, unless it already has this or a larger number."""
        self.update_property(name, lambda properties: str(max(value, int(properties.get(name, value)))))

    def transactions_of(self, version: int) -> Mapping[str, int]:
        """Return the numbers that the commit of one version names, by application id. Only its own file in the log is
        read (`txn` actions of the Delta protocol). Return nothing if there is no such file.

        The numbers of an application never decrease, so those of any version are lower bounds of the newest ones.
        """
        commit = commits.read_commit(self.storage, version)
        actions = [] if commit is None else commits.actions_of(self.storage, version, commit)
        return {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a}

    def trim_log(self, keep_from: int, hours: float, most_hours: float) -> int:
        """Delete old commits and checkpoints; return the number of deleted files. A stream commits each second, and
        without this, each commit would be listed forever.

        Versions from `keep_from` on can still be opened, and those that were the newest one within some `hours`, but
        none from before `most_hours`.
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
        # They are deleted in order, so that a reader never finds a gap after a checkpoint.
        gone = sorted((v, info.path) for v, _, info in found if v < first)
        for _, path in gone:
            # Another process may trim the log at the same time.
            with suppress(FileNotFoundError):
                filesystem.delete_file(path)
        return len(gone)

    def add_fields(self, schema: pa.Schema) -> bool:
        """Add the fields, including nested ones, that the table does not have. In older files, they are null. Return
        whether there were such fields.

        Raises:
            WritetimeError: a field of the table has another type.
        """

        def attempt() -> bool:
            have = (now := self.load()).fields
            new = [f for f in schema if not holds_fields(have, pa.schema([f]))]
            if new:
                fields: list[deltalake.Field] = list(deltalake.Schema.from_arrow(pa.schema(new)).fields)
                now.table.alter.add_columns(fields, post_commithook_properties=_only_commit())
                self._finish(now.table.version())
            return bool(new)

        return self._retry(attempt)

    def _retry(self, attempt: Callable[[], bool]) -> bool:
        fault: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                return attempt()
            except (_Taken, exceptions.CommitFailedError) as e:
                fault = e
                time.sleep(random.uniform(0.01, 0.1))
            except exceptions.DeltaError as e:
                raise kind_of(e)(f"{self.storage.address}: {plain_text(e)}") from None
        raise WritetimeError(f"{self.storage.address}: {ATTEMPTS} commits failed, the last one with: {fault}")


def _require_format(storage: Storage, version: str | None) -> None:
    if version != str(FORMAT_VERSION):
        has = "no format version, as before 0.1.0" if version is None else f"format version {version}"
        raise WritetimeError(
            f"{storage.address} has {has}, and this Writetime has format version {FORMAT_VERSION}: use the Writetime "
            "that wrote it, or bring the table in again, under another lake.path or after you have removed its folder"
        )


def _only_commit() -> "deltalake.PostCommitHookProperties":
    """Return the options by which delta-rs deletes no old commits after its own, and writes no checkpoint. It compares
    their times with this machine's clock, which may be wrong.
    """
    return deltalake.PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def holds_fields(have: pa.Schema, wanted: pa.Schema) -> bool:
    """Return whether a schema has all fields of another one, including nested ones."""
    return _agree(pa.struct(list(have)), pa.struct(list(wanted)), may_lack=False)


def takes_fields(have: pa.Schema, wanted: pa.Schema) -> bool:
    """Return whether fields can be added to a schema so that it holds all fields of another one: no field of both has
    another form.
    """
    return _agree(pa.struct(list(have)), pa.struct(list(wanted)), may_lack=True)


def _agree(have: pa.DataType, wanted: pa.DataType, *, may_lack: bool) -> bool:
    """Return whether a type has the fields of another one in the same form, or may lack some of them."""
    if pa.types.is_struct(wanted) and pa.types.is_struct(have):
        names = {f.name: f.type for f in have}
        return all(_agree(names[f.name], f.type, may_lack=may_lack) if f.name in names else may_lack for f in wanted)
    if pa.types.is_map(wanted) and pa.types.is_map(have):
        pairs = (have.key_type, wanted.key_type), (have.item_type, wanted.item_type)
        return all(_agree(*pair, may_lack=may_lack) for pair in pairs)
    if pa.types.is_list(wanted) and pa.types.is_list(have):
        return _agree(have.value_type, wanted.value_type, may_lack=may_lack)
    return have == wanted
