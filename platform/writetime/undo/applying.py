"""Applies a plan: it writes its cells to the database, at a bounded rate.

A run that ends early continues where it stopped: `undo/<id>/progress.json` has the number of attempts, and for each
file the number of rows that are done. Rows may be written again, which changes nothing.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

from cassandra.cluster import Session
from cassandra.query import BatchStatement, BatchType, BoundStatement
from pyarrow import fs
from pydantic import TypeAdapter

from writetime.clients.database import connect
from writetime.clients.prepared_statements import UnknownWrite, driver_faults_named
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text
from writetime.delta.storage import Storage
from writetime.lake.state import generation_of
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.undo.damage import WRITTEN_SINCE
from writetime.undo.plan import ATTEMPTS, UndoPlan, folder_of, read_cells
from writetime.undo.statements import RowStatements, UndoStatements

_PROGRESS = "progress.json"
# Rows that are written at once.
_ROWS = 64
# A batch of more statements could exceed what the database accepts.
_STATEMENTS = 50


@dataclass
class _Progress:
    """The number of attempts, and for each file the rows that are done."""

    attempts: int = 0
    done: dict[str, int] = field(default_factory=dict)


_JSON = TypeAdapter(_Progress)


def apply_plan(settings: Settings, table: LakeTable, plan: UndoPlan, rows_per_second: int | None = None) -> int:
    """Write the cells of a plan to the database; return the number of rows that this run wrote.

    Raises:
        Transient: the database does not answer. Another run continues.
        WritetimeError: the table is another one than that of the plan, or was truncated since; the plan is so old that
            the database may have dropped newer deletions; or a right is missing.
    """
    if generation_of(table.changes.load()) != plan.generation:
        raise WritetimeError(f"{plan.table} was truncated or created again since the plan {plan.id}: make a new plan")
    folder = folder_of(table, plan.id)
    with connect(settings) as session:
        schema = _schema(session, table, plan)
        progress = _begin(folder, plan)
        statements = UndoStatements(session, schema, plan.write_time, progress.attempts)
        written = 0
        pace = _Pace(rows_per_second)
        for file in plan.files:
            rest = islice(_rows(read_cells(table, plan, file)), progress.done.get(file.name, 0), None)
            while some := list(islice(rest, _ROWS)):
                _write(session, plan, [statements.of_row(row, int(time.time())) for row in some])
                written += len(some)
                progress.done[file.name] = progress.done.get(file.name, 0) + len(some)
                _save(folder, progress)
                pace.after(written)
    return written


def _schema(session: Session, table: LakeTable, plan: UndoPlan) -> TableSchema:
    """Return the schema of the table in the database, if the plan may still be applied to it."""
    schema = read_schema(session, plan.table)
    if plan.table_id is not None and schema.id is not None and str(schema.id) != plan.table_id:
        raise WritetimeError(f"{plan.table} was dropped and created again since the plan {plan.id}: make a new plan")
    age = time_now() - plan.write_time
    if age > schema.gc_grace_seconds * 1_000_000:
        raise WritetimeError(
            f"the plan {plan.id} is of {instant_text(plan.write_time)}, longer ago than gc_grace_seconds = "
            f"{schema.gc_grace_seconds} of {plan.table}: the database may have dropped newer deletions. Make a new "
            "plan; if gc_grace_seconds is very small, raise it first"
        )
    columns = {column.name for column in schema.static + schema.regular}
    lake = table.schema()
    if lost := [c.name for c in lake.static + lake.regular if c.name not in columns]:
        raise WritetimeError(f"{plan.table} no longer has the column {lost[0]}: land the table, and make a new plan")
    return schema


def _begin(folder: Storage, plan: UndoPlan) -> _Progress:
    """Count an attempt."""
    filesystem = folder.filesystem()
    progress = _Progress()
    if filesystem.get_file_info(_PROGRESS).type == fs.FileType.File:
        with filesystem.open_input_stream(_PROGRESS) as file:
            progress = _JSON.validate_json(file.read())
    if progress.attempts >= ATTEMPTS:
        raise WritetimeError(f"the plan {plan.id} was begun {ATTEMPTS} times: make a new plan")
    progress.attempts += 1
    _save(folder, progress)
    return progress


def _save(folder: Storage, progress: _Progress) -> None:
    with folder.writing(_PROGRESS) as file:
        file.write(_JSON.dump_json(progress))


def _rows(cells: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the cells to write, row by row."""
    for _, row in groupby(cells, lambda cell: (cell["key"], cell["position"])):
        if found := [cell for cell in row if cell["kind"] != WRITTEN_SINCE]:
            yield found


def _write(session: Session, plan: UndoPlan, rows: Sequence[RowStatements]) -> None:
    """Write rows at once, and their lists one after the other."""
    try:
        with driver_faults_named(f"the undo {plan.id}"):
            for answer in [session.execute_async(batch) for row in rows for batch in _batches(row.plain)]:
                answer.result()
            for statement in (each for row in rows for each in row.of_lists):
                session.execute(statement)
    except UnknownWrite as e:
        raise UnknownWrite(f"{plan.table}: {e}; run this again to go on") from None


def _batches(statements: Sequence[BoundStatement]) -> Iterator[BatchStatement | BoundStatement]:
    for start in range(0, len(statements), _STATEMENTS):
        some = statements[start : start + _STATEMENTS]
        if len(some) == 1:
            yield some[0]
            continue
        batch = BatchStatement(BatchType.UNLOGGED)
        batch.add_all(some, [None] * len(some))
        yield batch


class _Pace:
    """Waits so that no more rows per second are written than a limit allows."""

    def __init__(self, rows_per_second: int | None) -> None:
        self._limit = rows_per_second
        self._began = time.monotonic()

    def after(self, rows: int) -> None:
        """Wait until so many rows may have been written."""
        if self._limit is not None:
            time.sleep(max(0.0, self._began + rows / self._limit - time.monotonic()))
