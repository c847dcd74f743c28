"""Applies a plan: it writes its cells to the database, at a bounded rate.

A run that ends early continues where it stopped. Below `undo/<id>/`, there is a file `attempt-<number>` for each run,
and `progress.json` has for each file of the plan the number of rows that are done. Rows may be written again, which
changes nothing. So it does not matter if `progress.json` is lost, or written by two runs at once.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from cassandra.cluster import Session
from pyarrow import fs
from pydantic import TypeAdapter

from writetime.clients.database import connect, find_replicas
from writetime.clients.prepared_statements import UnknownWrite, driver_faults_named
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text
from writetime.delta.commits import put_new
from writetime.delta.storage import Storage
from writetime.lake.state import generation_of
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now
from writetime.replication.requests import WriteBatch, batches_of, send
from writetime.replication.target_table import require_same_clock
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.undo.damage import WRITTEN_SINCE
from writetime.undo.plan import ATTEMPTS, UndoPlan, folder_of, read_cells
from writetime.undo.statements import RowStatements, UndoStatements

log = logging.getLogger(__name__)

_PROGRESS = "progress.json"
# Rows between two records of the progress.
_ROWS = 64

_JSON = TypeAdapter(dict[str, int])


def apply_plan(settings: Settings, table: LakeTable, plan: UndoPlan, rows_per_second: int | None = None) -> int:
    """Write the cells of a plan to the database; return the number of rows that this run wrote.

    Raises:
        Transient: the database does not answer. Another run continues.
        WritetimeError: the table is another one than that of the plan, or was truncated since; the plan is so old that
            the database may have dropped newer deletions; a column is gone; a right is missing; or the clocks of this
            machine and the database differ.
    """
    if generation_of(table.changes.load()) != plan.generation:
        raise WritetimeError(f"{plan.table} was truncated or created again since the plan {plan.id}: make a new plan")
    needed_by = f"the undo {plan.id} of {plan.table}"
    try:
        with connect(settings) as session, driver_faults_named(needed_by):
            # By a wrong one, cells with a TTL would be left out or deleted as expired.
            require_same_clock(session, "the database")
            schema = read_schema(session, plan.table)
            _require_same_table(schema, plan)
            find_replicas(session, schema.keyspace)
            statements = UndoStatements(session, schema, plan.write_time, _begin(folder_of(table, plan.id), plan))
            written = 0
            pace = _Pace(rows_per_second)
            for some in _unwritten(table, plan):
                _require_young(schema, plan)
                _write(session, [statements.of_row(row, int(time.time())) for row in some], needed_by)
                written += len(some)
                pace.after(written)
            return written
    except UnknownWrite as e:
        raise UnknownWrite(f"{plan.table}: {e}; run this again to go on") from None


def _unwritten(table: LakeTable, plan: UndoPlan) -> Iterator[list[list[dict[str, Any]]]]:
    """Yield some rows at a time, and record them as done when the next ones are requested."""
    folder = folder_of(table, plan.id)
    done = _progress(folder)
    for file in plan.files:
        rest = islice(_rows(read_cells(table, plan, file)), done.get(file.name, 0), None)
        while some := list(islice(rest, _ROWS)):
            yield some
            done[file.name] = done.get(file.name, 0) + len(some)
            with folder.writing(_PROGRESS) as progress:
                progress.write(_JSON.dump_json(done))


def _require_same_table(schema: TableSchema, plan: UndoPlan) -> None:
    if plan.table_id is not None and schema.id is not None and str(schema.id) != plan.table_id:
        raise WritetimeError(f"{plan.table} was dropped and created again since the plan {plan.id}: make a new plan")


def _require_young(schema: TableSchema, plan: UndoPlan) -> None:
    """Raise a `WritetimeError` if the database may have dropped deletions that the lake did not have at the plan."""
    if time_now() - plan.known_until > schema.gc_grace_seconds * 1_000_000:
        raise WritetimeError(
            f"the plan {plan.id} is of {instant_text(plan.known_until)}, longer ago than gc_grace_seconds = "
            f"{schema.gc_grace_seconds} of {plan.table}: the database may have dropped newer deletions. Make a new "
            "plan; if gc_grace_seconds is very small, raise it first"
        )


def _begin(folder: Storage, plan: UndoPlan) -> int:
    """Return the number of this attempt, which no other run has."""
    for number in range(1, ATTEMPTS + 1):
        if put_new(folder, f"attempt-{number}", b""):
            return number
    raise WritetimeError(f"the plan {plan.id} was begun {ATTEMPTS} times: make a new plan")


def _progress(folder: Storage) -> dict[str, int]:
    filesystem = folder.filesystem()
    if filesystem.get_file_info(_PROGRESS).type != fs.FileType.File:
        return {}
    with filesystem.open_input_stream(_PROGRESS) as file:
        content = file.read()
    try:
        return _JSON.validate_json(content)
    except ValueError:
        # A kill may leave a part of it.
        log.warning("%s/%s is damaged: all rows of the plan are written again", folder.address, _PROGRESS)
        return {}


def _rows(cells: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the cells to write, row by row."""
    for _, row in groupby(cells, lambda cell: (cell["key"], cell["position"])):
        if found := [cell for cell in row if cell["kind"] != WRITTEN_SINCE]:
            yield found


def _write(session: Session, rows: Sequence[RowStatements], needed_by: str) -> None:
    """Write rows. All statements of a list are one request."""
    send(session, batches_of((row.key, row.plain) for row in rows), needed_by)
    send(
        session, (WriteBatch(row.key, statements, attempts=1) for row in rows for statements in row.of_lists), needed_by
    )


class _Pace:
    """Waits so that no more rows per second are written than a limit allows."""

    def __init__(self, rows_per_second: int | None) -> None:
        self._limit = rows_per_second
        self._began = time.monotonic()

    def after(self, rows: int) -> None:
        """Wait until so many rows may have been written."""
        if self._limit is not None:
            time.sleep(max(0.0, self._began + rows / self._limit - time.monotonic()))
