"""Keeps a table of the lake small and quick to read, by the settings; for use on a schedule."""

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import Conflict
from writetime.delta.store_clock import require_right_clock
from writetime.files.merging import Runner
from writetime.lake import horizon, packing, retention, state
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now
from writetime.row_events import stream
from writetime.row_events.trimming import merge_events
from writetime.view import refreshing
from writetime.view.expected_rows import check_of

_DAY = 86_400_000_000
_log = logging.getLogger(__name__)


def maintain(
    settings: Settings, table: LakeTable, run: Runner = map, unfit: Counter[str] | None = None
) -> dict[str, int]:
    """Fold new changes into the state, refresh the compacted view, and do the upkeep; return the amount of each.

    If a program that follows the table conflicts with a step, leave the step to that program.

    Args:
        settings: the settings, with the times for which data is kept.
        table: the table.
        run: runs the tasks.
        unfit: as in `files.row_form.fit`.

    Raises:
        Unexpected: new rows do not meet the expectations of the table's entry. The view stays as it was, and all other
            work is done.
        ModuleNotFoundError: as in `check_of`. All other work is done.
        WritetimeError: as in `check_of`, or the view has another fault. All other work is done.
    """
    done = {
        "files_folded": _unless_done(table, lambda: state.fold(table, run)),
        "buckets_compacted": _unless_done(table, lambda: state.compact(table, run)),
    }
    try:
        # Before the upkeep, which merges only changes that the view has.
        done["rows"] = refreshing.refresh(settings, table, run, check_of(settings, table), unfit).rows
    except Conflict:
        done["rows"] = table.view.load().rows
    except (WritetimeError, ModuleNotFoundError):
        upkeep(settings, table, run)
        raise
    return done | upkeep(settings, table, run)


def upkeep(settings: Settings, table: LakeTable, run: Runner = map) -> dict[str, int]:
    """Drop old tombstones, merge old history and row events, delete files that no version needs; return how much of
    each was done. It publishes nothing: state, view and row events have the same content before and after.

    Raises:
        WritetimeError: this machine's clock is far ahead; nothing is done. If it was set while this ran, no file is
            deleted.
    """
    require_right_clock(table.changes.storage)
    now = time_now()
    _move_on(table, run)
    retention.trim_logs(table, settings.lake.vacuum_hours)
    history = now - round(settings.lake.keep_history_days * _DAY)
    keep_days = settings.row_events.keep_days
    events = None if keep_days is None else now - round(keep_days * _DAY)
    return {
        "buckets_without_old_tombstones": _unless_done(table, lambda: _drop_tombstones(settings, table, now, run)),
        "files_packed": _unless_done(table, lambda: packing.pack_folded(table, run)),
        "history_files_merged": _unless_done(table, lambda: retention.trim_history(table, history, run)),
        "row_events_merged": 0 if events is None else _unless_done(table, lambda: merge_events(table, events, run)),
        "files_deleted": len(retention.vacuum(table, settings.lake.vacuum_hours)),
    }


def _unless_done(table: LakeTable, step: Callable[[], int]) -> int:
    """Do a step, and return the amount of its work; 0 if another process was first. The next call does the rest."""
    try:
        return step()
    except Conflict as e:
        _log.warning("%s: a step of the maintenance is postponed until the next time: %s", table.name, e)
        return 0


def _move_on(table: LakeTable, run: Runner) -> None:
    """Move the state, row events and view of a table without new changes to the present version of `changes`, because
    the log of their own version is deleted after `lake.vacuum_hours`.
    """
    if not state.pending(table, table.changes.load(), table.state.load()):
        _unless_done(table, lambda: state.fold(table, run))
    stream.move_on(table)
    # A process that changed the view meanwhile has recorded a later version.
    with suppress(Conflict):
        refreshing.move_on(table)


def _drop_tombstones(settings: Settings, table: LakeTable, now: int, run: Runner) -> int:
    due = horizon.next_horizon(table, now, settings.lake.drop_tombstones_hours)
    return 0 if due is None else state.drop_tombstones(table, due, run)
