"""Makes parts of a lake table anew from others, without the database: the view and the row events from the state, the
state from the changes (and the snapshots that are among them)."""

from dataclasses import replace

from writetime.lake import views
from writetime.lake.merging import MergeTask, Runner, Source, run_merge
from writetime.lake.state import FOLDED
from writetime.lake.table import LakeTable
from writetime.rows.events import Batch
from writetime.rows.stream import SEQUENCE, Position, RowTask, create_rows, first_tasks, position_of


def rebuild_view(table: LakeTable, run: Runner = map) -> int:
    """Make the compacted view anew; return how many rows it has."""
    return views.refresh(table, run)


def rebuild_state(table: LakeTable, run: Runner = map) -> int:
    """Make the state anew, one level a bucket, from all changes; return how many files of changes they were.

    Raises:
        Conflict: changes were folded in, or levels folded, while this ran: run it again.
    """
    state = table.state.load()
    changes = table.changes.load()
    schema = table.schema(changes)
    tasks = [
        MergeTask((Source(table.changes.storage, tuple(files)),), schema, bucket, table.state.storage)
        for bucket, files in changes.by_bucket.items()
    ]
    levels = [level for level in run(run_merge, tasks) if level is not None]
    table.state.rewrite(state, state.files, levels, data_change=False, also={FOLDED: changes.version})
    return len(changes.files)


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
    batch = Batch(0, 1, views.time_now())
    if last is not None:
        batch = replace(last.batch, generation=last.batch.generation + 1, sequence=last.batch.sequence + 1)
        batch = replace(batch, as_of=max(views.time_now(), last.batch.as_of))
    written = [file for file in run(RowTask.run, first_tasks(table, state, changes, batch)) if file is not None]
    numbers = Position(batch, changes.version, state.version).numbers() | {SEQUENCE: batch.sequence}
    rows.rewrite(before, before.files, written, data_change=True, also=numbers)
    return sum(file.rows for file in written)
