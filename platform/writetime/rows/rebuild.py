"""Makes the stream of row events anew from the state, without the database."""

from writetime.lake.merging import Runner
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now
from writetime.rows.events import Batch
from writetime.rows.stream import SEQUENCE, Position, RowTask, create_rows, first_tasks, position_of


def rebuild_rows(table: LakeTable, run: Runner = map) -> int:
    """Make the stream of row events anew: one batch that creates all rows of now, of the next generation.

    The batches before it leave the lake table; in Kafka it follows them. Returns how many events it has.

    Raises:
        Conflict: a batch was added while this ran: run it again.
    """
    rows = create_rows(table)
    before = rows.load()
    last = position_of(before)
    state = table.state.load()
    changes = table.changes.load()
    batch = Batch(0, 1, time_now())
    if last is not None:
        batch = Batch(last.batch.generation + 1, last.batch.sequence + 1, max(batch.as_of, last.batch.as_of))
    written = [file for file in run(RowTask.run, first_tasks(table, state, changes, batch)) if file is not None]
    numbers = Position(batch, changes.version, state.version).numbers() | {SEQUENCE: batch.sequence}
    rows.rewrite(before, before.files, written, data_change=True, also=numbers)
    return sum(file.rows for file in written)
