"""The state of a table, as levels. A batch of changes appends a small merged level to each bucket that it touches.

The state of a bucket is the merge of all its levels. The state follows the commits of `changes`. The last transactions
of the applications `changes` and `changes/commit` in `state` are the number and the digest of the commit up to which
changes are folded in. A change may be folded twice, because merging is idempotent.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePosixPath

from writetime.changes.model import change_schema
from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import ATTEMPTS, ERASED, Conflict
from writetime.delta.buckets import ALL, are_few, bucket_of_part, count_parts
from writetime.delta.parquet import WrittenFile, count_values, uncompressed_size
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import CommitId, DataFile, TableVersion, by_bucket, by_folder, by_part
from writetime.files.merging import MergeTask, Runner, Source, merge_files, write_state
from writetime.lake.bucket_contents import (
    DROPPED,
    BucketContents,
    PendingChanges,
    StateFiles,
    dropped_of,
    is_dropped,
    levels_of,
)
from writetime.lake.horizon import HORIZON, horizon_of, may_drop, only_dropped, without_dropped
from writetime.lake.table import CREATED, GENERATION, LakeTable, created_of, find_version
from writetime.schema.table import TableSchema

# Checks new levels before they are committed.
Staged = Callable[[Sequence[WrittenFile]], None]

FOLDED = "changes"
# The number of times that the state was rebuilt.
_REBUILT = "rebuilt"
# The number of levels of about one size that become one larger level, four times as large. So a level is rewritten
# log4(state / batch) times, and a reader reads at most three levels of each size.
FAN = 4
_SMALLEST = 1 << 16

# The names of files of merged history, and of files of several batches (`packing`): `base-<version>-...` and
# `packed-<version>-...`. They have only changes of this version of `changes`.
BASE, PACKED = "base-", "packed-"


def folded_version(state: TableVersion) -> int | None:
    """Return the version of `changes` up to which the state has folded them; None at first."""
    return state.transaction(FOLDED)


def folded_commit(state: TableVersion) -> CommitId | None:
    """Return the commit of `changes` up to which the state has folded them; None at first."""
    return state.commit_of(FOLDED)


def pending(table: LakeTable, changes: TableVersion, state: TableVersion) -> dict[int, list[DataFile]]:
    """Return the files of `changes` that are not folded in yet, by bucket."""
    return by_bucket(unfolded(table, changes, state), table.buckets)


def contents(table: LakeTable, state: TableVersion, changes: TableVersion) -> dict[int, BucketContents]:
    """Return the content of each bucket, in the order of the buckets."""
    return StateFiles(table, state).all_contents(pending(table, changes, state))


def parts_of(storage: Storage, files: Sequence[DataFile], buckets: int) -> int:
    """Return the number of parts of the token range into which files are split, each for one task. If there are many
    rows, it is one per bucket. Otherwise it is the least number of parts that are small enough, because each part
    reads the files of all buckets again.
    """
    is_few = are_few(sum(file.rows for file in files), buckets)
    return _small_parts_of(storage, files, buckets) if is_few else buckets


def _small_parts_of(storage: Storage, files: Sequence[DataFile], buckets: int) -> int:
    """Return the number of parts into which files are split by their size alone."""
    return count_parts(buckets, sum(uncompressed_size(storage, file.path) for file in files))


def in_parts(storage: Storage, files: Sequence[DataFile], buckets: int) -> tuple[int, dict[int, list[DataFile]]]:
    """Return the number of parts by `parts_of`, and the files of each part. Files of one bucket stay in that bucket."""
    own = by_bucket(files, buckets)
    parts = buckets if len(own) == 1 else parts_of(storage, files, buckets)
    return parts, by_part(files, parts, buckets)


def unfolded(table: LakeTable, changes: TableVersion, state: TableVersion) -> list[DataFile]:
    """Return the files of `changes` that a version of the state has not folded yet. Raise `WritetimeError` if the state
    has folded a commit that the changes do not have.
    """
    commit = folded_commit(state)
    if commit is None:
        return changes.files
    if not table.changes.has_commit(commit, changes):
        raise WritetimeError(
            f"{table.state.storage.address} has changes up to commit {commit.version} of "
            f"{table.changes.storage.address}, which {has_lost(commit, changes)}: rebuild it with `writetime rebuild "
            f"{table.name} state`"
        )
    return files_since(table, changes, commit.version)


def follows_changes(table: LakeTable) -> bool:
    """Return whether the changes have all commits that the state has folded."""
    commit = folded_commit(table.state.load())
    return commit is None or table.changes.has_commit(commit, table.changes.load())


def has_lost(commit: CommitId, changes: TableVersion) -> str:
    """Return why a commit is not one of the changes, and the possible cause."""
    what = "does not exist" if commit.version > changes.version else "is another one now"
    return f"{what} (one of the two is a copy of an earlier time, or lost its newest commits)"


def files_since(table: LakeTable, changes: TableVersion, version: int) -> list[DataFile]:
    """Return the files of `changes` that have changes from after a version of it."""
    if version >= changes.version:
        return []
    # If its log was deleted, a change may be folded again.
    before = find_version(table.changes, version)
    known = before.by_path if before else {}
    return [file for file in changes.files if file.path not in known and not _holds_no_more_than(file, version)]


def is_merged(file: DataFile) -> bool:
    """Return whether a file of `changes` has merged history."""
    return PurePosixPath(file.path).name.startswith(BASE)


def _holds_no_more_than(file: DataFile, version: int) -> bool:
    name = file.path.rpartition("/")[2]
    return name.startswith((BASE, PACKED)) and int(name.split("-")[1]) <= version


def fold(table: LakeTable, run: Runner = map, staged: Staged | None = None, until: int | None = None) -> int:
    """Fold the changes that are not in the state yet into it, as one new level per bucket, or one of all buckets if
    they are few. Return the number of their files. With `until`, fold the changes up to this version of them.

    If a fold is repeated, or two run at once, only one takes effect. `staged` is called with the new levels before they
    are committed. If it raises, they are not committed. Raise `Conflict` if tombstones were dropped, or rows erased,
    meanwhile: run this again.
    """
    changes = table.changes.load()
    if until is not None and until < changes.version:
        changes = table.changes.load(until)
    state = table.state.load()
    if generation_of(state) != generation_of(changes):
        # Landing is about to rebuild the state.
        return 0
    files = unfolded(table, changes, state)
    if erased_of(state) > erased_of(changes):
        # These changes may have rows that the state no longer has.
        raise table.state.conflict()
    schema = table.schema(changes)
    parts, files_of = in_parts(table.changes.storage, files, table.buckets)
    of_state = StateFiles(table, state, parts=parts)
    tasks = [
        _Fold(
            of_state.waiting(part, found),
            schema,
            bucket_of_part(part, parts, table.buckets),
            table.buckets,
            table.state.storage,
        )
        for part, found in files_of.items()
    ]
    levels = [level for each in run(_Fold.run, tasks) for level in each]
    if staged:
        staged(levels)
    commit = changes.commit_id
    also = commit.numbers(FOLDED)
    given = {HORIZON: horizon_of(state), ERASED: erased_of(state)}
    new = table.state.append(levels, FOLDED, commit.version, also, given=given)
    return len(files) if new else 0


def compact(table: LakeTable, run: Runner = map, staged: Staged | None = None) -> int:
    """Fold levels if there are too many of one size, and dropped entries in the same way. Return the number of buckets
    in which levels were folded; levels of all buckets count as one. For `staged`, see `fold`.
    """
    state = table.state.load()
    levels, dropped = (
        {bucket: some for bucket, files in by_folder(of_kind).items() if (some := levels_to_fold(files))}
        for of_kind in (levels_of(state), dropped_of(state))
    )
    if not levels and not dropped:
        return 0
    schema = _schema_of(table, state)
    if schema is None:
        # The next fold records it again.
        return 0
    merged = _merged(table, table.state.storage, levels, schema, run)
    merged += _merged(table, table.state.storage, dropped, schema, run, prefix=DROPPED)
    if staged:
        staged(merged)
    replaced = [file for chosen in (levels, dropped) for files in chosen.values() for file in files]
    table.state.commit(state, TableChange(replaced, merged, is_new_data=False))
    return len(levels.keys() | dropped.keys())


def drop_tombstones(table: LakeTable, horizon: int, run: Runner = map) -> int:
    """Move the tombstones and expired cells from before the horizon (microseconds) from the levels of the state into
    separate files, in one commit that records the horizon. Return the number of buckets that had any.

    Folds and compactions continue meanwhile. The levels that they create meanwhile may have writes that dropped entries
    cover. So these levels are merged with the dropped entries, like late changes. Raise `Conflict` if another process
    dropped tombstones, or the state was rebuilt: run this again.
    """
    state = table.state.load()
    folded, schema = folded_version(state), _schema_of(table, state)
    if folded is None or schema is None or horizon <= horizon_of(state):
        return 0

    # Now, because an erasure deletes the log of this version.
    fences = {name: state.transaction(name) for name in (HORIZON, GENERATION, CREATED, _REBUILT, ERASED)}
    storage = table.state.storage
    every = levels_of(state)
    levels = by_bucket(every, table.buckets)
    old = {file.path for file in every if may_drop(storage, file, horizon)}
    if old and parts_of(storage, every, table.buckets) == 1:
        chosen = {ALL: every}
    else:
        chosen = {b: files for b, files in levels.items() if any(f.path in old for f in files)}
    removed = {f.path: f for files in chosen.values() for f in files}
    # Levels of all buckets leave the table, so the other buckets get their rows as levels of their own.
    shared = [f for f in removed.values() if f.bucket == ALL]
    others = {b: shared for b in levels if shared and chosen.keys().isdisjoint({b, ALL})}
    tasks = [_Drop(task, horizon) for task in _tasks(table, storage, chosen, schema)]
    merged = [file for files in run(_Drop.run, tasks) for file in files]
    merged += _merged(table, storage, others, schema, run)
    dropped = [DataFile(f.path, f.bucket, f.rows, f.size, 0) for f in merged if is_dropped(f.path)]
    for _ in range(ATTEMPTS):
        now = table.state.load()
        if any(now.transaction(name) != number for name, number in fences.items()):
            break
        added = [file for file in levels_of(now) if file.path not in state.by_path] if dropped else []
        gone = [file for file in now.files if file.path in removed] + added
        levels = merged + (_merged_added_meanwhile(table, now, added, dropped, horizon) if added else [])
        also = {FOLDED: folded_version(now) or 0, HORIZON: horizon}
        with suppress(Conflict):
            table.state.commit(now, TableChange(gone, levels, is_new_data=False), also)
            return len(chosen)
    raise Conflict(f"{storage.address} has been rewritten by another process: run this again")


def _merged_added_meanwhile(
    table: LakeTable, state: TableVersion, levels: Sequence[DataFile], dropped: Sequence[DataFile], horizon: int
) -> list[WrittenFile]:
    """Merge levels with the entries that were dropped at the places of their late writes. The result is one level per
    bucket, and one per part for `ALL`. Raise `Conflict` if the log of the version that the state has folded in was
    deleted meanwhile.
    """
    schema, storage = _schema_of(table, state), table.state.storage
    if schema is None:
        raise Conflict(f"{storage.address} has a schema that is not known: run this again")
    written: list[WrittenFile] = []
    for bucket, level in sources_of_tasks(storage, by_folder(levels), table.buckets):
        covering = replace(level, files=tuple(dropped))
        waiting = PendingChanges((level,), (covering,), horizon, table.buckets, table.cache)
        written += _Fold(waiting, schema, bucket, table.buckets, storage).run()
    return written


def _schema_of(table: LakeTable, state: TableVersion) -> TableSchema | None:
    """Return the schema that the state was folded with; None if the log of that version is deleted.

    A later schema may have dropped a column. The next batch of row events needs the column's cells for the images
    before. So levels lose these cells only when the changes up to the drop are folded in.
    """
    changes = find_version(table.changes, folded_version(state))
    return changes and table.schema(changes)


def count_tombstones(table: LakeTable, state: TableVersion) -> int:
    """Return the number of tombstones of rows, ranges and partitions in the levels of the state, from their footers."""
    return sum(count_values(table.state.storage, file.path, "tombstone.write_time") for file in levels_of(state))


def rebuild(table: LakeTable, run: Runner = map) -> int:
    """Rebuild the state from all changes in the lake; return the number of files of changes.

    The changes are complete, because retention merges old changes and drops no data of the state. Tombstones that the
    state has dropped return until they are dropped again. The files of dropped entries are removed. Raise `Conflict` if
    another process changed the state meanwhile: run this again.
    """
    state = table.state.load()
    changes = table.changes.load()
    schema = table.schema(changes)
    # Before the work, because an erasure deletes the logs of these versions.
    is_same = created_of(state) == created_of(changes)
    rebuilt = (state.transaction(_REBUILT) or 0) + 1
    numbers = changes.commit_id.numbers(FOLDED)
    numbers |= {GENERATION: generation_of(changes), _REBUILT: rebuilt, ERASED: erased_of(changes)}
    levels = _merged(table, table.changes.storage, changes.by_bucket, schema, run)
    if is_same:
        table.state.commit(state, TableChange(state.files, levels, is_new_data=False), numbers)
    else:
        table.state.replace(state, levels, change_schema(schema), numbers | {CREATED: created_of(changes)})
    return len(changes.files)


def generation_of(part: TableVersion) -> int:
    """Return the number of the generation of a version of a part."""
    return part.transaction(GENERATION) or 0


def erased_of(part: TableVersion) -> int:
    """Return the number of the last run of an erasure in a version of a part, 0 before the first one."""
    return part.transaction(ERASED) or 0


@dataclass(frozen=True)
class _Fold:
    """Merge changes of one bucket, or of all (`ALL`), into a level."""

    waiting: PendingChanges
    schema: TableSchema
    bucket: int
    buckets: int
    target: Storage

    def run(self) -> list[WrittenFile]:
        return write_state(self.target, self.waiting.merged(self.schema), self.bucket, self.buckets)


@dataclass(frozen=True)
class _Drop:
    """Merge the levels of one bucket, or of all (`ALL`), into one without the entries that a horizon drops. These
    entries become a separate file.
    """

    task: MergeTask
    horizon: int

    def run(self) -> list[WrittenFile]:
        task = self.task
        state = merge_files([task.source], task.schema)
        left, dropped = (part(state, task.schema, self.horizon) for part in (without_dropped, only_dropped))
        return [
            *write_state(task.target, left, task.bucket, task.buckets),
            *write_state(task.target, dropped, task.bucket, task.buckets, DROPPED),
        ]


def _merged(
    table: LakeTable,
    storage: Storage,
    files: Mapping[int, Sequence[DataFile]],
    schema: TableSchema,
    run: Runner,
    *,
    prefix: str = "",
) -> list[WrittenFile]:
    """Merge the files of each bucket into one level. The files of `ALL` become one level. If they are too large for one
    task, each part has its own task, and they become one level per bucket.
    """
    tasks = _tasks(table, storage, files, schema, prefix=prefix)
    return [level for levels in run(MergeTask.run, tasks) for level in levels]


def _tasks(
    table: LakeTable, storage: Storage, files: Mapping[int, Sequence[DataFile]], schema: TableSchema, prefix: str = ""
) -> list[MergeTask]:
    sources = sources_of_tasks(storage, files, table.buckets)
    return [MergeTask(s, schema, b, table.buckets, table.state.storage, prefix) for b, s in sources]


def sources_of_tasks(
    storage: Storage, files: Mapping[int, Sequence[DataFile]], buckets: int
) -> Iterator[tuple[int, Source]]:
    """Yield the files of each bucket, each for one task. The files of `ALL` are in the least number of parts of the
    token range that are small enough for a task.
    """
    for bucket, found in files.items():
        parts = _small_parts_of(storage, found, buckets) if bucket == ALL else 1
        if parts == 1:
            yield bucket, Source.of_bucket(storage, found, bucket, buckets)
            continue
        for part in range(parts):
            yield bucket_of_part(part, parts, buckets), Source.of_bucket(storage, found, part, parts)


def levels_to_fold(levels: Sequence[DataFile], fan: int = FAN) -> list[DataFile]:
    """Return the levels of a bucket to fold into one: those of a size that `fan` levels have, and all smaller ones.

    Sizes are in classes, each `fan` times the previous one. The result of the fold counts in its own class at once.
    """
    by_size = sorted(levels, key=lambda f: f.size)
    chosen = 0
    for size_class, group in groupby(by_size, key=lambda f: _class(f.size, fan)):
        count = len(list(group))
        start = sum(_class(f.size, fan) < size_class for f in by_size)
        folded = sum(f.size for f in by_size[:chosen])
        if count + (chosen > 0 and _class(folded, fan) == size_class) >= fan:
            chosen = start + count
    return by_size[:chosen]


def _class(size: int, fan: int) -> int:
    return max(0, math.ceil(math.log(max(size, 1) / _SMALLEST, fan)))
