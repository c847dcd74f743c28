"""A plan to undo the writes of an interval to a table: the damaged cells, in files that SQL can query.

A plan is in the table's folder of the lake: `undo/<id>/undo.json`, and a Parquet file per bucket with damaged cells,
whose fields are those of `damage.damage_schema`.

**Its write time** is just after the end of the interval. Each cell of the plan was last written before it, so the undo
wins against the damage. It loses against each write with a later write time, whenever it is applied, and also if the
lake did not have that write yet.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pydantic import TypeAdapter

from writetime.changes.model import change_schema
from writetime.core.arrow import decoded, one_chunk, pc
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text
from writetime.core.printing import json_value
from writetime.delta.commits import put_new
from writetime.delta.parquet import reading
from writetime.delta.storage import Storage
from writetime.delta.versions import TableVersion
from writetime.files.change_files import read_changes
from writetime.files.merging import Runner, Source, merge_files
from writetime.lake.history import require_history, select
from writetime.lake.horizon import captured_until, complete_snapshot, registered_sources
from writetime.lake.state import generation_of
from writetime.lake.table import LakeTable, view_schema
from writetime.lake.views import time_now, views_at
from writetime.lookup.filtering import numbers_where
from writetime.schema.table import TableSchema
from writetime.schema.types import Native
from writetime.undo.damage import KINDS, OF_ROW, WRITTEN_SINCE, Chosen, Interval, damage_schema, find_damage

_FOLDER, _PLAN = "undo", "undo.json"
_SHOWN = ("kind", "row", "column", "element", "before", "now")
_NEEDED = ("kind", "part", "column", "key", "position", "key_values", "path", "value", "expiry", "elements")
_ID = re.compile(r"\d+")
# Partitions that are compared at once.
_PARTITIONS = 20_000

ATTEMPTS, ATTEMPT_MICROS = 100, 1000
"""How often the application of a plan may begin, and the write times that each attempt has for lists."""

_UNDO_MICROS = ATTEMPTS * ATTEMPT_MICROS


@dataclass(frozen=True)
class PlanFile:
    """A file of a plan, and the number of its cells."""

    name: str
    cells: int


@dataclass(frozen=True)
class UndoPlan:
    """A plan: its id, the table with its id and its generation, the interval, the time up to which the lake had all
    writes, the condition and the columns, the files, and the number of cells of each kind. Times are in microseconds.

    `whole_rows` are the cells of the kind `added` that are whole rows.
    """

    id: str
    table: str
    table_id: str | None
    generation: int
    interval: Interval
    known_until: int
    where: str | None
    columns: list[str] | None
    files: list[PlanFile]
    counts: dict[str, int]
    whole_rows: int

    @property
    def cells(self) -> int:
        """The number of cells to write."""
        return sum(count for kind, count in self.counts.items() if kind != WRITTEN_SINCE)

    @property
    def write_time(self) -> int:
        """The write time of all cells but those of lists, which are up to a tenth of a second earlier."""
        return self.interval.last + _UNDO_MICROS + 1

    @property
    def inverse(self) -> Interval:
        """The interval whose undo takes this one back, once it is applied."""
        return Interval(self.interval.last, self.write_time)


_JSON = TypeAdapter(UndoPlan)


@dataclass(frozen=True)
class _Found:
    """A file that a task wrote, and how many cells of each kind, and whole rows, it has."""

    file: PlanFile
    counts: Mapping[str, int]
    whole_rows: int


@dataclass(frozen=True)
class _Task:
    """Compare the damaged partitions of a bucket. It can be sent to a process."""

    sources: Sequence[Source]
    schema: TableSchema
    interval: Interval
    now: int
    where: str | None
    columns: frozenset[str] | None
    target: Storage
    name: str

    def run(self) -> _Found | None:
        keys = pc.unique(merge_files(self.sources, self.schema, self._within)["key"])
        if not len(keys):
            return None
        changes = list(self._changes_of(keys))
        rows = None if self.where is None else partial(numbers_where, where=self.where)
        chosen = Chosen(self.columns, rows)
        counts: Counter[str] = Counter()
        whole_rows = 0
        with (
            self.target.writing(self.name) as file,
            pq.ParquetWriter(file, damage_schema(self.schema), compression="zstd") as writer,
        ):
            for start in range(0, len(keys), _PARTITIONS):
                some = [_with_keys(table, keys[start : start + _PARTITIONS]) for table in changes]
                found = find_damage(some, self.schema, self.interval, self.now, chosen)
                counts.update(found["kind"].to_pylist())
                whole_rows += pc.sum(pc.equal(found["part"], OF_ROW)).as_py() or 0
                writer.write_table(found)
        # Before the plan names it.
        self.target.sync(self.name)
        return _Found(PlanFile(self.name, counts.total()), counts, whole_rows)

    def _within(self, changes: pa.Table) -> pa.Table:
        first, last = self.interval.first, self.interval.last

        def keep(cells: pa.StructArray) -> pa.Array:
            times = cells.field("write_time")
            return pc.and_(pc.greater(times, first), pc.less_equal(times, last))

        return select(changes, self.schema, keep)

    def _changes_of(self, keys: pa.Array) -> Iterator[pa.Table]:
        for source in self.sources:
            for file in source.files:
                place = source.storage, file.path, source.tokens_of(file)
                for table in read_changes([place], change_schema(self.schema)):
                    yield _with_keys(table, keys)


def _with_keys(changes: pa.Table, keys: pa.Array) -> pa.Table:
    return changes.filter(pc.is_in(decoded(one_chunk(changes["key"])), value_set=keys))


def make_plan(
    table: LakeTable,
    interval: Interval,
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    run: Runner = map,
) -> UndoPlan:
    """Compare a table with what it would be without the writes of an interval, and write the plan.

    Args:
        table: the table.
        interval: the damaging writes.
        where: a condition in SQL: only rows that meet it, as they were or as they are.
        columns: only these static and regular columns.
        run: runs the tasks, one per bucket.

    Raises:
        WritetimeError: the lake cannot show the start of the interval, or does not have all writes up to its end; the
            table has counters; the condition is rejected, or a column is missing.
    """
    changes = table.changes.load()
    schema = table.schema(changes)
    known_until = _known_until(table, changes, interval)
    chosen = None if columns is None else _chosen_columns(schema, columns)
    _require_no_counters(schema)
    if where is not None:
        # A wrong condition is refused even if there is no damage.
        numbers_where(view_schema(schema).empty_table(), where)
    now = time_now()
    _delete_old(table, now - schema.gc_grace_seconds * 1_000_000)
    target = table.storage.folder(_FOLDER).folder(str(now))
    tasks = [
        _Task(
            view.contents.waiting.changes,
            schema,
            interval,
            now // 1_000_000,
            where,
            chosen,
            target,
            f"cells-{view.bucket:05}.parquet",
        )
        for view in views_at(table, interval.first, changes.version)
    ]
    table.storage.filesystem().create_dir(f"{_FOLDER}/{now}", recursive=True)
    found = sorted(filter(None, run(_Task.run, tasks)), key=lambda each: each.file.name)
    counts = {kind: sum(each.counts.get(kind, 0) for each in found) for kind in KINDS}
    plan = UndoPlan(
        str(now),
        table.name,
        None if schema.id is None else str(schema.id),
        generation_of(changes),
        interval,
        known_until,
        where,
        None if columns is None else list(columns),
        [each.file for each in found],
        counts,
        sum(each.whole_rows for each in found),
    )
    put_new(target, _PLAN, _JSON.dump_json(plan, indent=1))
    return plan


def read_plan(table: LakeTable, plan_id: str) -> UndoPlan:
    """Return a plan of a table. Raises WritetimeError: there is none of this id, or it is damaged."""
    folder = folder_of(table, plan_id)
    filesystem = folder.filesystem()
    if not _ID.fullmatch(plan_id) or filesystem.get_file_info(_PLAN).type != fs.FileType.File:
        known = f"; known are {', '.join(ids)}" if (ids := plan_ids(table)) else ""
        raise WritetimeError(
            f"{table.name} has no plan {plan_id!r}: `writetime undo {table.name} --from T1 --to T2` makes one{known}"
        )
    with filesystem.open_input_stream(_PLAN) as file:
        content = file.read()
    try:
        return _JSON.validate_json(content)
    except ValueError as e:
        raise WritetimeError(f"{folder.address}/{_PLAN} is damaged, so make a new plan: {e}") from None


def plan_ids(table: LakeTable) -> list[str]:
    """Return the ids of a table's complete plans, the oldest first."""
    filesystem = table.storage.filesystem()
    found = filesystem.get_file_info(fs.FileSelector(_FOLDER, allow_not_found=True, recursive=True))
    return sorted(info.path.split("/")[-2] for info in found if info.base_name == _PLAN)


def folder_of(table: LakeTable, plan_id: str) -> Storage:
    """Return the folder of a plan."""
    return table.storage.folder(_FOLDER).folder(plan_id)


def read_cells(table: LakeTable, plan: UndoPlan, file: PlanFile) -> Iterator[dict[str, Any]]:
    """Yield the cells of a file of a plan, with the fields that statements need."""
    for batch in _batches(table, plan, file, _NEEDED):
        yield from batch.to_pylist()


def examples(table: LakeTable, plan: UndoPlan, count: int = 10) -> list[dict[str, str]]:
    """Return some cells of a plan, with the fields that people read, as text or JSON."""
    batches = (batch for file in plan.files for batch in _batches(table, plan, file, _SHOWN))
    rows = (row for batch in batches for row in zip(*batch.columns, strict=True))
    return [dict(zip(_SHOWN, map(_text, row), strict=True)) for row in islice(rows, count)]


def _text(value: pa.Scalar) -> str:
    if not value.is_valid:
        return ""
    return orjson.dumps(json_value(value)).decode() if pa.types.is_struct(value.type) else value.as_py()


def _batches(table: LakeTable, plan: UndoPlan, file: PlanFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    folder = folder_of(table, plan.id)
    with reading(folder, file.name), folder.filesystem().open_input_file(file.name) as opened:
        yield from pq.ParquetFile(opened).iter_batches(batch_size=10_000, columns=list(names))


def _delete_old(table: LakeTable, before: int) -> None:
    """Delete plans that were made before a time (microseconds): they can no longer be applied, and hold old values."""
    filesystem = table.storage.filesystem()
    for info in filesystem.get_file_info(fs.FileSelector(_FOLDER, allow_not_found=True)):
        if _ID.fullmatch(info.base_name) and int(info.base_name) < before:
            filesystem.delete_dir(info.path)


def _known_until(table: LakeTable, changes: TableVersion, interval: Interval) -> int:
    """Return the time up to which the lake has all writes, if a plan of the interval can be made."""
    if interval.first >= interval.last:
        raise WritetimeError("--from must be before --to")
    require_history(table, changes, interval.first)
    whole = captured_until(changes) if registered_sources(changes) else complete_snapshot(changes)
    if whole <= interval.last + _UNDO_MICROS:
        raise WritetimeError(
            f"{table.name}: the lake has all writes up to {instant_text(whole)}, and the interval ends at "
            f"{instant_text(interval.last)}: land the table first, or name an earlier --to"
        )
    return whole


def _chosen_columns(schema: TableSchema, columns: Sequence[str]) -> frozenset[str]:
    known = [column.name for column in schema.static + schema.regular]
    for name in columns:
        if name not in known:
            raise WritetimeError(
                f"{schema.full_name} has no static or regular column {name!r}; known are {', '.join(known)}"
            )
    return frozenset(columns)


def _require_no_counters(schema: TableSchema) -> None:
    for column in schema.static + schema.regular:
        if column.type == Native("counter"):
            raise WritetimeError(
                f"{schema.full_name} has the counter {column.name}: counters cannot be undone, because each increment "
                "is a sum; restore the table into another one, and subtract what was counted"
            )
