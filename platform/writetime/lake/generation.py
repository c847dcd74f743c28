"""Generations of a table: the changes that count after TRUNCATE, or after DROP and CREATE of the same name.

With both, the database discards all earlier writes, regardless of their write times. So a merge by write time is not
enough. TRUNCATE leaves a record on each node: the position in the commit log up to which the node discarded the writes
(`system.local.truncated_at`; Cassandra's `CommitLogReplayer` replays only later mutations). The same rule decides here
which changes count: those that a node logged after that position, and snapshots that were taken later. After DROP and
CREATE, the changes of the earlier table do not count. The table id of a change identifies its table.

A generation begins with one commit to `changes`, which removes the changes that no longer count (`earlier` keeps them
for a while): `renew` makes it after TRUNCATE, `LakeTable.begin` after DROP and CREATE. The number of the generation is
a transaction of that commit. Then the state is rebuilt from the other changes, with the same number. Row events begin
their own generation, whose first batch creates all rows.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.changes.starts import LATEST, Start, Truncation
from writetime.core.arrow import one_chunk, pc
from writetime.core.errors import WritetimeError
from writetime.core.instants import uuid_micros
from writetime.delta.parquet import HOT_LAYOUT, WrittenFile, read_file, write_file
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import DataFile, TableVersion
from writetime.files.merging import Runner
from writetime.lake.earlier import end_generation
from writetime.lake.history import HISTORY
from writetime.lake.horizon import TRUNCATED, complete_snapshot, registered_sources
from writetime.lake.state import generation_of, is_merged, rebuild
from writetime.lake.table import CREATED, GENERATION, LakeTable, created_of, view_schema
from writetime.schema.table import TableSchema

# `CommitLog-<version>-<id>.log`: ids increase on a node (`CommitLogDescriptor`).
_SEGMENT = re.compile(r"CommitLog-\d+-(\d+)\.log")


def which_count(changes: pa.Table, starts: Mapping[str | None, Start]) -> np.ndarray:
    """Return for each change whether it counts.

    Args:
        changes: the changes, with their origins.
        starts: the starts by source. A change of a node, or of a published snapshot of a ScyllaDB table, has the name
            of its source in `origin.node`. None is for changes without a name, which are from a backfill.
    """
    source, node, file, offset, captured_at = one_chunk(changes["origin"]).flatten()
    captured = captured_at.cast(pa.int64()).fill_null(0).to_numpy()
    logged, rows_of_log = (_equal(source, kind) for kind in ("commitlog", "scylla_cdc"))
    counts = np.ones(len(changes), bool)
    for name, start in starts.items():
        void = captured < start.since
        if start.of_log:
            own = rows_of_log | _equal(node, name)
            if start.truncation is not None:
                void[rows_of_log] |= _log_times(file.filter(pa.array(rows_of_log))) < start.truncation.at
                # Of a snapshot that the agent published.
                void |= ~rows_of_log & (captured <= start.truncation.at)
        else:
            own = (
                _equal(node, name) if name is not None else node.is_null().to_numpy(zero_copy_only=False) & ~rows_of_log
            )
            if start.truncation is not None:
                first = start.snapshot_at if start.snapshot_at > start.truncation.at else LATEST
                before = captured < first
                void |= np.where(logged, _is_before(file, offset, start.truncation), before) if name else before
        counts &= ~(own & void)
    return counts


def _equal(texts: pa.Array, wanted: str | None) -> np.ndarray:
    return pc.equal(texts, wanted).fill_null(False).to_numpy(zero_copy_only=False)


def _is_before(files: pa.Array, offsets: pa.Array, truncation: Truncation) -> np.ndarray:
    """Return whether positions in commit logs are before that of a truncation. Positions in other files count as before
    it.
    """
    segment, offset = _segments(files), offsets.fill_null(0).to_numpy()
    first = truncation.segment or 0
    return (segment < first) | ((segment == first) & (offset < truncation.offset))


def _segments(files: pa.Array) -> np.ndarray:
    """Return the segment ids of files; -1 for files that are not segments."""
    found = files.dictionary_encode()
    ids = [_SEGMENT.fullmatch(PurePosixPath(name or "").name) for name in found.dictionary.to_pylist()]
    numbers = np.array([-1 if match is None else int(match[1]) for match in ids] or [-1], np.int64)
    return numbers[found.indices.fill_null(0).to_numpy()]


def renew(table: LakeTable, starts: Mapping[str, Start], run: Runner = map) -> bool:
    """Begin a generation if a source has a truncation that the lake does not have yet. If a generation began, empty the
    view of an earlier table, and rebuild the state. Return whether `changes` has a newer version now.

    If a process is killed between these steps, the next call does the rest.

    Raises:
        Conflict: another process rewrote the table meanwhile: run this again.
        WritetimeError: it is not known which changes count.
    """
    changes = table.changes.load()
    new = {
        source: start.truncation.at
        for source, start in starts.items()
        if start.truncation is not None and start.truncation.at > (changes.transaction(TRUNCATED + source) or 0)
    }
    if new:
        _leave_out(table, changes, {source: starts[source] for source in new}, run)
        changes = table.changes.load()
    if created_of(view := table.view.load()) != created_of(changes):
        table.view.replace(view, [], view_schema(table.schema(changes)), {CREATED: created_of(changes)})
    if generation_of(table.state.load()) != generation_of(changes):
        rebuild(table, run)
    return bool(new)


def _leave_out(table: LakeTable, changes: TableVersion, starts: Mapping[str, Start], run: Runner) -> None:
    """Remove the changes that no longer count, in one commit. It begins a generation if there are any."""
    seen = {TRUNCATED + source: start.truncation.at for source, start in starts.items() if start.truncation}
    since, at = min(seen.values()), max(seen.values())
    merged = [f for f in changes.files if is_merged(f) and f.added_at > at]
    if merged and len(registered_sources(changes)) > 1:
        raise WritetimeError(
            f"{table.name} was truncated, and changes of its nodes were merged since (lake.keep_history_days), so it "
            f"cannot be determined which of them count: run `writetime forget {table.name}`, and start the agents with "
            'capture.snapshot = "always"'
        )
    # If one of several snapshots is from before the truncation, none counts, as a change does not show its snapshot.
    backfilled = Start(truncation=Truncation(at, 0, 0), snapshot_at=complete_snapshot(changes))
    schema = table.whole_schema(changes)
    tasks = [
        _LeaveOut(bucket, table.changes.storage, tuple(files), schema, {**starts, None: backfilled})
        for bucket, files in changes.by_folder.items()
    ]
    removed: list[DataFile] = []
    written: list[WrittenFile] = []
    for gone, rest in run(_LeaveOut.run, tasks):
        removed += gone
        written += rest

    def ended(last: TableVersion) -> Mapping[str, int]:
        return end_generation(table, last, since, at)

    if removed:
        numbers = seen | {GENERATION: generation_of(changes) + 1}
        table.changes.commit(changes, TableChange(removed, written), numbers, numbers_after=ended)
    else:
        table.changes.commit(changes, TableChange(), seen | {HISTORY: at})


def _log_times(files: pa.Array) -> np.ndarray:
    """Return the times (microseconds) of rows of CDC logs: `<stream>/<timeuuid>`."""
    names = pc.replace_substring(pc.utf8_slice_codeunits(files, -36), "-", "")
    return uuid_micros(np.frombuffer(bytes.fromhex("".join(names.to_pylist())), np.uint8).reshape(-1, 16))


@dataclass(frozen=True)
class _LeaveOut:
    """Rewrite the files of a bucket (or of `ALL`) without the changes that do not count."""

    bucket: int
    storage: Storage
    files: Sequence[DataFile]
    schema: TableSchema
    starts: Mapping[str | None, Start]

    def run(self) -> tuple[list[DataFile], list[WrittenFile]]:
        """Return the files to remove, and those to add."""
        removed, written = [], []
        for file in self.files:
            changes = read_file(self.storage, file.path, change_schema(self.schema))
            counts = which_count(changes, self.starts)
            if counts.all():
                continue
            removed.append(file)
            if counts.any():
                rest = changes.filter(pa.array(counts))
                written.append(write_file(self.storage, rest, self.bucket, rest["token"], layout=HOT_LAYOUT))
        return removed, written
