"""Keeps the lake small: old changes are merged with one another, and files that no version needs are deleted."""

from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.lake.history import after, raise_history, until
from writetime.lake.lake_storage import Storage
from writetime.lake.merging import Runner, Source, merge_files
from writetime.lake.parquet import WrittenFile, read_file, write_file
from writetime.lake.state import BASE, folded_version, levels_to_fold
from writetime.lake.table import LakeTable
from writetime.schema.table import TableSchema


@dataclass(frozen=True)
class _Trim:
    """Merge the parts of a bucket's old changes that were written up to a time; later parts stay as they are."""

    bucket: int
    source: Source
    schema: TableSchema
    instant: int
    prefix: str

    def run(self) -> list[WrittenFile]:
        storage: Storage = self.source.storage
        base = merge_files([self.source], self.schema, partial(until, schema=self.schema, instant=self.instant))
        full = change_schema(self.schema)
        rest = pa.concat_tables(
            after(read_file(storage, f.path, full), self.schema, self.instant) for f in self.source.files
        )
        return [
            write_file(storage, table, self.bucket, table["token"], self.prefix)
            for table in (base, rest)
            if table.num_rows
        ]


def trim_history(table: LakeTable, instant: int, run: Runner = map) -> int:
    """Merge the changes that came to the lake, and were written, up to a time (microseconds).

    From then on the changes show no earlier time. Only changes that the state has folded in are merged, where there are
    as many files of one size as `levels_to_fold` asks for. Returns how many files were merged.
    """
    folded = folded_version(table.state.load())
    if folded is None:
        return 0
    changes = table.changes.load()
    schema = table.schema(changes)
    known = {f.path for f in table.changes.load(folded).files}
    tasks = []
    for bucket, files in changes.by_bucket.items():
        if old := levels_to_fold([f for f in files if f.path in known and f.added_at <= instant]):
            source = Source(table.changes.storage, tuple(old))
            tasks.append(_Trim(bucket, source, schema, instant, f"{BASE}{folded}-"))
    if not tasks:
        return 0
    raise_history(table, instant)
    written = [file for files in run(_Trim.run, tasks) for file in files]
    removed = [file for task in tasks for file in task.source.files]
    table.changes.rewrite(changes, removed, written, data_change=False)
    return len(removed)


def vacuum(table: LakeTable, hours: int) -> list[str]:
    """Delete the files that no version of the last `hours` names, including those of failed tasks; return them.

    A reader, or a task that has not committed, that takes longer than this loses its files.
    """
    gone = []
    for part in (*table.parts, *([table.row_events] if table.row_events.exists() else [])):
        paths = part.load().table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        gone += [f"{part.storage.address}/{path}" for path in paths]
    return gone
