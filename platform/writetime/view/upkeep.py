"""Keeps a table of the lake small and quick to read.

`keep_up` runs after the batches of `follow` and `publish`, `upkeep` on a schedule, by the command `maintain` and the
job of this name of Dagster. Landing, row events and refreshes pack the files of their own batches.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError, reason_of
from writetime.core.outages import is_outage
from writetime.delta.bucketed_table import Conflict
from writetime.delta.store_clock import require_right_clock
from writetime.files.merging import Runner
from writetime.lake import horizon, packing, retention, state
from writetime.lake.projection import ROW_EVENTS, VIEW, Projection
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now
from writetime.row_events.packing import pack_events
from writetime.row_events.stream import has_other_table
from writetime.row_events.trimming import merge_events
from writetime.view import refreshing
from writetime.view.expected_rows import check_of

_DAY = 86_400_000_000
# Calls of `keep_up` between two that also trim the logs.
_TRIM_EVERY = 64
# The name of the step that frees space.
_DELETED = "files_deleted"
_ICEBERG = "iceberg_tables"
_log = logging.getLogger(__name__)


def keep_up(settings: Settings, table: LakeTable, number: int, after: Iterable[Projection], run: Runner = map) -> int:
    """Fold the changes that all of these projections have read into the state, so that their next batches cost the
    same. Compact its levels, and trim the logs if it is the turn of this number. Return the number of folded files.
    Raise `Conflict` if another process rewrote the state meanwhile: the next call does it.
    """
    positions = [position for each in after if (position := each.position(each.of(table).find()))]
    until = min((position.changes.version for position in positions), default=None)
    folded = state.fold(table, run, until=until)
    # Also if others folded: a backfill compacts nothing.
    state.compact(table, run)
    if number % _TRIM_EVERY == 0:
        retention.trim_logs(table, settings.lake.vacuum_hours)
    return folded


def maintain(
    settings: Settings, table: LakeTable, run: Runner = map, unfit: Counter[str] | None = None
) -> dict[str, int]:
    """Fold new changes into the state, refresh the compacted view, and do the upkeep; return the amount of each.
    `unfit` is as in `files.row_form.fit`.

    If a program that follows the table conflicts with a step, leave the step to that program.

    Raises:
        Unexpected: new rows do not meet the expectations of the table's entry. The view stays as it was, and all other
            work is done.
        ModuleNotFoundError: as in `check_of`. All other work is done.
        WritetimeError, OSError: as in `check_of`, or a step has another fault. The upkeep is done.
    """
    try:
        done = {
            "files_folded": _unless_done(table, lambda: state.fold(table, run)),
            "buckets_compacted": _unless_done(table, lambda: state.compact(table, run)),
            # Before the upkeep, which merges only changes that the view has.
            "rows": _refresh(settings, table, run, unfit),
        }
    except (WritetimeError, OSError, ModuleNotFoundError):
        upkeep(settings, table, run)
        raise
    return done | upkeep(settings, table, run)


def _refresh(settings: Settings, table: LakeTable, run: Runner, unfit: Counter[str] | None) -> int:
    """Refresh the compacted view, unless another program does; return the number of its rows."""
    try:
        return refreshing.refresh(settings, table, run, check_of(settings, table), unfit).rows
    except Conflict:
        return table.view.load().rows


def upkeep(settings: Settings, table: LakeTable, run: Runner = map) -> dict[str, int]:
    """Drop old tombstones, merge old history and row events, delete files that no version needs; return how much of
    each was done. It publishes nothing: state, view and row events have the same content before and after. Raise
    `WritetimeError` if this machine's clock is far ahead; nothing is done. If it was set while this ran, no file is
    deleted. A step that fails, as for a damaged file, does not stop the others; then raise its error. After an outage,
    such as a full disk, only files are deleted.
    """
    require_right_clock(table.changes.storage)
    now = time_now()
    history = now - round(settings.lake.keep_history_days * _DAY)
    keep_days = settings.row_events.keep_days
    steps: dict[str, Callable[[], int]] = {
        "buckets_without_old_tombstones": lambda: _drop_tombstones(settings, table, now, run),
        "files_packed": lambda: packing.pack_folded(table, run),
        "history_files_merged": lambda: retention.trim_history(table, history, run),
        "row_event_files_packed": lambda: _pack_events(table),
        "row_events_merged": lambda: (
            0 if keep_days is None else merge_events(table, now - round(keep_days * _DAY), run)
        ),
        **({_ICEBERG: lambda: settle(table)} if table.iceberg else {}),
        _DELETED: lambda: len(retention.vacuum(table, settings.lake.vacuum_hours)),
    }
    done: dict[str, int] = {}
    faults: list[Exception] = []
    try:
        _trim_logs(settings, table, run)
    except (WritetimeError, OSError) as e:
        if not is_outage(e):
            raise
        faults.append(e)
    for name, step in steps.items():
        if name != _DELETED and any(map(is_outage, faults)):
            continue
        try:
            done[name] = _unless_done(table, step)
        except (WritetimeError, OSError) as e:
            faults.append(e)
    for fault in faults[1:]:
        _log.error("%s: %s", table.name, reason_of(fault))
    if faults:
        raise faults[0]
    return done


def settle(table: LakeTable) -> int:
    """Publish the Iceberg tables of the view and the row events, if this is left to do; return their number. Raise as
    `Projection.settle`.
    """
    for projection in (VIEW, ROW_EVENTS):
        projection.settle(table)
    return len(table.iceberg)


def _trim_logs(settings: Settings, table: LakeTable, run: Runner) -> None:
    """Delete the parts of all logs that no step needs, after state, view and row events have moved on."""
    # The log of their own version is deleted after `lake.vacuum_hours`, even if no change came since.
    if not state.pending(table, table.changes.load(), table.state.load()):
        _unless_done(table, lambda: state.fold(table, run))
    for projection in (ROW_EVENTS, VIEW):
        projection.move_on(table)
    retention.trim_logs(table, settings.lake.vacuum_hours)


def _unless_done(table: LakeTable, step: Callable[[], int]) -> int:
    """Do a step, and return the amount of its work; 0 if another process was first. The next call does the rest."""
    try:
        return step()
    except Conflict as e:
        _log.warning("%s: a step of the maintenance is postponed until the next time: %s", table.name, e)
        return 0


def _pack_events(table: LakeTable) -> int:
    """Pack the row events. Of a table with few batches, those that pack may all be without events."""
    return pack_events(table) if table.row_events.exists() and not has_other_table(table) else 0


def _drop_tombstones(settings: Settings, table: LakeTable, now: int, run: Runner) -> int:
    due = horizon.next_horizon(table, now, settings.lake.drop_tombstones_hours)
    return 0 if due is None else state.drop_tombstones(table, due, run)
