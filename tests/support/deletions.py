"""The steps that delete files of the lake by their ages, and a table with work for them."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from tests.support.made import add, settings_at, write
from writetime.core.config import Settings
from writetime.delta.commits import put_new
from writetime.delta.parquet import write_file
from writetime.lake import packing, retention, state
from writetime.lake.backfilled import delete_old_records
from writetime.lake.table import LakeTable
from writetime.row_events import stream
from writetime.view.refreshing import refresh
from writetime.view.upkeep import upkeep
from writetime_dagster.resources import LakeResource

DELETE: dict[str, Callable[[Settings, LakeTable], object]] = {
    "upkeep": upkeep,
    "stream": lambda settings, table: retention.trim_stream(table, settings.lake.vacuum_hours),
    "logs": lambda settings, table: retention.trim_logs(table, settings.lake.vacuum_hours),
    "refresh": refresh,
    "backfill": lambda _, table: delete_old_records(table),
    "clean-up": lambda _, table: LakeResource().clean_up(f"{table.name}/state"),
}


def replace_files(folder: Path, table: LakeTable, first: int = 1) -> None:
    """Add batches, and replace files of each part of a table."""
    for number in range(first, first + 16):
        add(table, [write(number, 1, number, v="a")], number)
        state.fold(table)
        stream.extend(table)
        refresh(settings_at(folder), table)
    packing.pack_batches(table, table.changes.load())
    state.compact(table)


def leave_files(table: LakeTable) -> None:
    """Write a checkpoint of each part, and files and a record of tasks that have not committed."""
    for part in table.parts:
        DeltaTable(part.storage.address).create_checkpoint()
        rows = pa.table({"token": [1]})
        write_file(part.storage, rows, 0, rows["token"])
    assert put_new(table.storage, "backfilled/1.json", b"{}")


def files(folder: Path) -> set[Path]:
    """All files below a folder."""
    return {path for path in folder.rglob("*") if path.is_file()}
