"""The upkeep of a stream of row events after its batches, so that the next one costs the same."""

from writetime.core.config import Settings
from writetime.files.merging import Runner
from writetime.lake import retention, state
from writetime.lake.table import LakeTable
from writetime.row_events.changed_rows import position_of
from writetime.row_events.stream import NAMES

# Batches after which the logs are trimmed.
_TRIM_BATCHES = 64


def keep_up(settings: Settings, table: LakeTable, run: Runner = map) -> None:
    """Fold the changes up to the last batch into the state, compact levels, and trim the logs from time to time.

    Raises:
        Conflict: another process rewrote the state meanwhile: the next call does it.
    """
    position = position_of(table.row_events.load(), NAMES)
    if position is None:
        return
    state.fold(table, run, until=position.changes.version)
    state.compact(table, run)
    if position.batch.sequence % _TRIM_BATCHES == 0:
        retention.trim_logs(table, settings.lake.vacuum_hours)
