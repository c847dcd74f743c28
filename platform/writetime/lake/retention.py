"""Keeps the lake small: old changes are merged with one another, and files that no version needs are deleted."""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.parquet import WrittenFile, conform, sort, write_rows
from writetime.delta.store_clock import clock_fault, require_right_clock
from writetime.delta.table_changes import REMEMBER_REMOVED, TableChange
from writetime.delta.versions import CommitId, TableVersion
from writetime.files.change_files import read_changes
from writetime.files.merging import Runner, Source, by_bucket_of_result, merge_files
from writetime.iceberg.metadata_files import FOLDER, newest
from writetime.lake.earlier import forget_generations, kept_files
from writetime.lake.history import after, raise_history, until, without_later_drops
from writetime.lake.projection import ROW_EVENTS, VIEW, positions
from writetime.lake.replica_positions import replica_positions
from writetime.lake.state import BASE, folded_commit, generation_of, levels_to_fold, sources_of_tasks
from writetime.lake.table import LakeTable, find_version
from writetime.lake.view_retention import STREAM_HOURS, delete_files, vacuum_view
from writetime.schema.table import TableSchema

log = logging.getLogger(__name__)

# How long checkpoints name removed files by Delta's default.
_REMEMBERED_HOURS = 168


@dataclass(frozen=True)
class _Trim:
    """Merge the parts of old changes of one bucket, of all (`ALL`) or of some, that were written up to a time; later
    parts stay as they are.
    """

    bucket: int
    buckets: int
    source: Source
    schema: TableSchema
    instant: int
    prefix: str

    def run(self) -> list[WrittenFile]:
        base = merge_files([self.source], self.schema, partial(until, schema=self.schema, instant=self.instant))
        rest = sort([after(changes, self.schema, self.instant) for changes in self._changes()])
        return [
            file
            for table in (base, rest)
            for bucket, own in by_bucket_of_result(table, self.source, self.bucket, self.buckets)
            for file in write_rows(self.source.storage, own, bucket, self.buckets, self.prefix)
        ]

    def _changes(self) -> Iterator[pa.Table]:
        """Yield the changes of each file."""
        source, full = self.source, change_schema(self.schema)
        for file in source.files:
            (changes,) = read_changes([(source.storage, file.path, source.tokens_of(file))], full)
            # Only some files have dictionaries.
            yield conform(changes, full, f"{source.storage.address}/{file.path}")


def trim_history(table: LakeTable, instant: int, run: Runner = map) -> int:
    """Merge the changes that came to the lake, and were written, up to a time (microseconds).

    After that, the changes can show no earlier time. Only changes that are in the state, the row events, the view and
    the replicas are merged, and only if there are as many files of one size as `levels_to_fold` requires. Return the
    number of merged files.
    """
    used = needed_changes(table)
    if used is None:
        return 0
    changes = table.changes.load()
    # Later times show the cells of columns that are dropped after this one.
    schema = without_later_drops(table.whole_schema(changes), instant)
    old = {
        bucket: some
        for bucket, files in changes.by_folder.items()
        if (some := levels_to_fold([f for f in files if f.path in used.by_path and f.added_at <= instant]))
    }
    if not old:
        return 0
    raise_history(table, instant)
    tasks = [
        _Trim(bucket, table.buckets, source, schema, instant, f"{BASE}{used.version}-")
        for bucket, source in sources_of_tasks(table.changes.storage, old, table.buckets)
    ]
    written = [file for files in run(_Trim.run, tasks) for file in files]
    removed = [file for files in old.values() for file in files]
    table.changes.commit(changes, TableChange(removed, written, is_new_data=False))
    return len(removed)


def used_changes(table: LakeTable) -> TableVersion | None:
    """Return the version of `changes` that the state, the row events and the view have all read. Those that cannot
    continue from their position do not count. Return None if none can continue.

    The files of this version may be merged under a name with its number. Nothing reads them again as new changes.
    """
    followed = [position.changes for position in positions(table)]
    return _oldest(table.changes, [folded_commit(table.state.load()), *followed])


def replicated_changes(table: LakeTable) -> list[TableVersion]:
    """Return the versions of `changes` that other clusters have, the oldest first. Those that cannot continue from
    their position do not count.
    """
    changes = table.changes.load()
    commits = {each.commit for each in replica_positions(table) if each.generation == generation_of(changes)}
    found = [_oldest(table.changes, [commit]) for commit in sorted(commits)]
    return [version for version in found if version is not None]


def needed_changes(table: LakeTable) -> TableVersion | None:
    """Return the version of `changes` that all steps of `used_changes` and of `replicated_changes` have read; None if
    none of them can continue.
    """
    versions = [used_changes(table), *replicated_changes(table)]
    return min((each for each in versions if each is not None), key=lambda each: each.version, default=None)


def folded_changes(table: LakeTable) -> TableVersion | None:
    """Return the version of `changes` that the state has; None before the first fold, or if its log is missing."""
    return _oldest(table.changes, [folded_commit(table.state.load())])


def _oldest(part: BucketedTable, recorded: Iterable[CommitId | None]) -> TableVersion | None:
    """Return the version of the oldest of these commits that exists, with its log; None if there is none. A step at
    another commit cannot continue from it, so nothing is kept for that step.
    """
    now = part.load()
    for commit in sorted({commit for commit in recorded if commit is not None}):
        if part.has_commit(commit, now) and (found := find_version(part, commit.version)):
            return found
    return None


def trim_stream(table: LakeTable, most_hours: float) -> None:
    """Delete the remains of a stream of batches in `changes`: files that were replaced more than an hour ago, and the
    log from before. The time is proportional to the number of deleted files, and to the log of an hour.

    If the next step of row events, the view or the state begins at an earlier version, the files and log of that
    version stay, and for a replication its log. But no log stays for longer than `most_hours`, and no file stays for a
    step whose log is deleted.

    By a clock that is far ahead, nothing is deleted.
    """
    if _is_clock_ahead(table):
        return
    used = used_changes(table)
    if used is None or _committed_after(table, used.version, time.time() - 3600 * STREAM_HOURS):
        _vacuum_changes(table, STREAM_HOURS, most_hours)
    needed = needed_changes(table) or table.changes.load()
    table.changes.trim_log(needed.version, STREAM_HOURS, most_hours)


def trim_logs(table: LakeTable, most_hours: float) -> None:
    """Delete the parts of all logs that no step of Writetime needs; `most_hours` is as in `trim_stream`, and so is a
    clock that is far ahead.
    """
    if _is_clock_ahead(table):
        return
    needed = {
        table.changes: needed_changes(table),
        table.state: _oldest(table.state, [position.state for position in positions(table)]),
    }
    for part in (*table.parts, table.row_events):
        if now := part.find():
            part.trim_log((needed.get(part) or now).version, STREAM_HOURS, most_hours)


def _is_clock_ahead(table: LakeTable) -> bool:
    if fault := clock_fault(table.changes.storage):
        log.warning("%s: %s", table.name, fault)
    return fault is not None


def _committed_after(table: LakeTable, version: int, seconds: float) -> bool:
    """Return whether a version of `changes` was committed after a time, or is the newest one."""
    log = table.changes.storage.filesystem().get_file_info(
        [f"_delta_log/{number:020d}.json" for number in (version, version + 1)]
    )
    # The version was the newest one until the next commit.
    return log[1].mtime is None or log[1].mtime.timestamp() > seconds


def vacuum(table: LakeTable, hours: int) -> list[str]:
    """Delete the files that no version of the last `hours` names, including those of failed tasks; return them. In a
    view with deletion vectors, one hour applies (`view_retention.vacuum_view`).

    A reader, or a task that has not committed, that takes longer than this loses its files. Raise `WritetimeError` if
    this machine's clock is far ahead; nothing is deleted. If a view or the row events cannot be published as an Iceberg
    table, their files stay, and the fault is raised at the end.
    """
    # Also if it was set while other steps ran.
    require_right_clock(table.changes.storage)
    faults = _publish_all(table)
    for part in (table.state, *([] if table.view.load().has_vectors else [table.view])):
        _remember_removed(part, hours)
    gone = _vacuum_changes(table, hours, hours, full=True) + _vacuum_part(table.state, hours, set(), full=True)
    if VIEW.name not in faults:
        gone += [f"{table.view.storage.address}/{path}" for path in vacuum_view(table, hours)]
    if ROW_EVENTS.name not in faults and table.row_events.exists():
        # Another program may have Iceberg tables, although this one has none.
        has_iceberg = bool(newest(table.row_events.storage))
        gone += _vacuum_part(table.row_events, hours, set(), full=True, iceberg=has_iceberg)
    for name, iceberg in table.iceberg.items():
        if name not in faults:
            address = getattr(table, name).storage.address
            gone += [f"{address}/{path}" for path in iceberg.sweep(time.time() - 3600 * STREAM_HOURS)]
    forget_generations(table, hours)
    for fault in faults.values():
        raise fault
    return gone


def _publish_all(table: LakeTable) -> dict[str, Exception]:
    """Publish the Iceberg tables, so that no snapshot of them names a file that is deleted; return the faults by the
    names of the projections. Nothing may be deleted of these.
    """
    faults: dict[str, Exception] = {}
    for projection in (VIEW, ROW_EVENTS):
        try:
            projection.publish_files(table)
        except Exception as e:
            faults[projection.name] = e
    return faults


def _vacuum_changes(table: LakeTable, hours: int, earlier_hours: float, *, full: bool = False) -> list[str]:
    """Delete files of `changes` that no version of the last `hours` names; return them. The files of generations that
    ended within `earlier_hours` stay.
    """
    return _vacuum_part(table.changes, hours, kept_files(table, earlier_hours), full=full)


def _vacuum_part(part: BucketedTable, hours: int, kept: set[str], *, full: bool, iceberg: bool = False) -> list[str]:
    """Delete the files that no version of the last `hours` names, except those to keep; return their addresses. With
    `full`, those of failed tasks are among them. With `iceberg`, the metadata of Iceberg stays.
    """
    # delta-rs writes a commit before it deletes, for which a full disk has no room.
    is_own = bool(kept) or part.storage.is_local or iceberg
    paths = part.load().table.vacuum(hours, dry_run=is_own, enforce_retention_duration=False, full=full)
    if iceberg:
        paths = [path for path in paths if not path.startswith(f"{FOLDER}/")]
    gone = delete_files(part.storage, {*paths} - kept) if is_own else paths
    return [f"{part.storage.address}/{path}" for path in gone]


def _remember_removed(part: BucketedTable, hours: int) -> None:
    """Set the property by which checkpoints name removed files for at least `hours`. A vacuum deletes other files by
    their own age.
    """
    wanted = f"interval {hours} hours"
    if hours > _REMEMBERED_HOURS and part.load().properties.get(REMEMBER_REMOVED) != wanted:
        part.set_property(REMEMBER_REMOVED, wanted)
