"""Earlier generations of a table: what it had before a TRUNCATE, or before DROP and CREATE of the same name.

The commit that begins a generation removes the changes of the one that ends, and the same commit has the first time
that the new one can show. Before that commit, a record of the generation is written: its files, and the times that they
can show. Its name is `earlier/<generation>-<version>.json`, with the version of `changes` that the commit follows. A
record of a killed process names a generation that has not ended, or not the newest version of one, so it does not
count. Cleaning up keeps the files and the records for some hours from then on.
"""

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from pyarrow import fs

from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text
from writetime.delta.commits import millis, put_new
from writetime.delta.versions import DataFile, TableVersion
from writetime.lake.history import HISTORY, cannot_show, history_from, schema_at
from writetime.lake.horizon import captured_until, registered_sources
from writetime.lake.state import generation_of
from writetime.lake.table import LakeTable, created_of
from writetime.schema.table import TableSchema

_FOLDER = "earlier"
_NAME = re.compile(r"(\d+)-(\d+)\.json")


@dataclass(frozen=True)
class EarlierGeneration:
    """The changes of a generation that has ended, and the number of its table among those of the name (`created`).

    They show the times from `first` (None: any time) up to, not including, `until`; it ended at `ended_at`. All are in
    microseconds.
    """

    created: int
    first: int | None
    until: int
    ended_at: int
    files: tuple[DataFile, ...]

    def shows(self, instant: int) -> bool:
        """Return whether the changes were complete for a time."""
        return (self.first is None or self.first <= instant) and instant < self.until


def end_generation(table: LakeTable, changes: TableVersion, until: int, first: int) -> dict[str, int]:
    """Record the generation of a version of the changes, which the next commit ends. Return the number by which this
    commit records the first time that it can show.

    Args:
        table: the table.
        changes: the last version of the generation.
        until: when the database removed the data, in microseconds. The record ends earlier if not all writes from
            before that time were captured, because landing leaves out those that arrive later.
        first: the first time that the next generation can show, in microseconds.
    """
    captured = captured_until(changes) if registered_sources(changes) else until
    files = tuple(DataFile(f.path, f.bucket, f.rows, f.size, f.added_at) for f in changes.files)
    ended_at = millis(table.changes.storage) * 1000
    record = EarlierGeneration(created_of(changes), history_from(changes), min(until, captured), ended_at, files)
    # The record of an attempt that followed the same version has the same files.
    put_new(table.storage, _path(generation_of(changes), changes.version), json.dumps(asdict(record)).encode())
    return {HISTORY: first}


def earlier_generations(table: LakeTable, changes: TableVersion) -> dict[int, EarlierGeneration]:
    """Return the generations before that of a version of the changes whose records are kept, by their numbers, the
    newest first.
    """
    newest = {number: version for number, version in _records(table) if number < generation_of(changes)}
    return {number: _read(table, _path(number, version)) for number, version in sorted(newest.items(), reverse=True)}


def replace_files(table: LakeTable, number: int, generation: EarlierGeneration) -> None:
    """Replace the record of an earlier generation, by its number, by one with other files."""
    versions = [version for each, version in _records(table) if each == number]
    # The newest version counts.
    put_new(table.storage, _path(number, max(versions) + 1), json.dumps(asdict(generation)).encode())
    for version in versions:
        with suppress(FileNotFoundError):
            table.storage.filesystem().delete_file(_path(number, version))


def changes_at(table: LakeTable, instant: int, version: int | None = None) -> tuple[Sequence[DataFile], TableSchema]:
    """Return the files of changes that show a time (microseconds), and the schema of that time, by a version of the
    changes, or by the newest one. They may be of an earlier generation.

    Raises:
        WritetimeError: no changes in the lake can show this time.
    """
    changes = table.changes.load(version)
    if (fault := cannot_show(table, changes, instant)) is None:
        return changes.files, schema_at(table, changes, instant)
    earlier = list(earlier_generations(table, changes).values())
    for each in earlier:
        if each.shows(instant):
            _require_files(table, each)
            return each.files, schema_at(table, changes, instant, each.created)
    shown = [_shown(each) for each in earlier if each.first is None or each.first < each.until]
    raise WritetimeError(f"{fault}, and from before that {'; '.join(shown)}" if shown else fault)


def kept_files(table: LakeTable, hours: float) -> set[str]:
    """Return the files of generations that ended within some hours, by their paths in `changes`."""
    earlier = earlier_generations(table, table.changes.load()).values()
    return {file.path for each in earlier if not _is_old(each, hours) for file in each.files}


def forget_generations(table: LakeTable, hours: float) -> None:
    """Delete the records of generations that ended some hours ago or earlier."""
    earlier = earlier_generations(table, table.changes.load())
    for number, version in _records(table):
        if number in earlier and _is_old(earlier[number], hours):
            # Another process may delete it at the same time.
            with suppress(FileNotFoundError):
                table.storage.filesystem().delete_file(_path(number, version))


def _records(table: LakeTable) -> list[tuple[int, int]]:
    """Return the number of the generation, and the version, of each record, in their order."""
    found = table.storage.filesystem().get_file_info(fs.FileSelector(_FOLDER, allow_not_found=True))
    return sorted((int(match[1]), int(match[2])) for info in found if (match := _NAME.fullmatch(info.base_name)))


def _is_old(generation: EarlierGeneration, hours: float) -> bool:
    return generation.ended_at / 1e6 <= time.time() - 3600 * hours


def _path(number: int, version: int) -> str:
    return f"{_FOLDER}/{number}-{version}.json"


def _read(table: LakeTable, path: str) -> EarlierGeneration:
    with table.storage.filesystem().open_input_stream(path) as file:
        content = file.read()
    try:
        record = json.loads(content)
        return EarlierGeneration(**{**record, "files": tuple(DataFile(**each) for each in record["files"])})
    except (ValueError, KeyError, TypeError):
        raise WritetimeError(
            f"{table.storage.address}/{path} is damaged: copy it from a backup of the lake, or delete it; then the "
            "lake no longer shows this generation, and deletes its files"
        ) from None


def _shown(generation: EarlierGeneration) -> str:
    first = "any time" if generation.first is None else instant_text(generation.first)
    return f"{first} to before {instant_text(generation.until)}"


def _require_files(table: LakeTable, generation: EarlierGeneration) -> None:
    """Raise a `WritetimeError` if files of a generation were deleted."""
    found = table.changes.storage.filesystem().get_file_info([file.path for file in generation.files])
    if missing := [info.path for info in found if info.type == fs.FileType.NotFound]:
        raise WritetimeError(
            f"{table.name} was truncated or created again, and files of its changes from before "
            f"{instant_text(generation.until)} were deleted, such as {missing[0]}: Writetime keeps them for "
            "lake.vacuum_hours"
        )
