"""Erases places of a table, which are partitions or rows of them, from the lake, while other programs work on it.

(1) View and row events follow all changes. Places with live rows are refused (`finding`). (2) The erasure is recorded
(`lake.erasures`): from now on, nothing older than it is added. (3) The files with rows of the places are written again
without them, in one commit per part, with the number of this run: first changes, then state, view and row events, each
of which is made from those before it. A commit that was made from an earlier version conflicts. This is repeated until
nothing is found. (4) The logs from before these commits are deleted, and then the files with rows of the places that
were there before these commits. No later commit can name one of those.

Each step finds what is left to do, so a run that was killed is repeated from the start.
"""

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
from pyarrow import fs

from writetime.core.arrow import mask_of, one_chunk, pc
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.core.instants import instant_text
from writetime.core.waiting import wait_until
from writetime.delta.bucketed_table import ATTEMPTS, ERASED, BucketedTable, Conflict
from writetime.delta.buckets import ALL
from writetime.delta.commits import put_new
from writetime.delta.parquet import COLD_LAYOUT, HOT_LAYOUT, PARTITION, Layout, Unreadable, WrittenFile, read_file
from writetime.delta.storage import Storage
from writetime.delta.store_clock import require_right_clock
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import DataFile, TableVersion
from writetime.erasure.files import (
    Cut,
    count_erased,
    erased_events,
    live_in_view,
    of_changes,
    of_events,
    of_view,
    prefix_of,
    require_no_bound,
    rewritten,
)
from writetime.erasure.places import UNKNOWN, ErasedPlaces
from writetime.iceberg.metadata_files import FOLDER as ICEBERG_FOLDER
from writetime.lake import state
from writetime.lake.bucket_contents import DROPPED, is_dropped
from writetime.lake.earlier import earlier_generations, kept_files, replace_files
from writetime.lake.erasures import all_erasures, folder_of, numbers_of, read_record, record_name
from writetime.lake.projection import ROW_EVENTS, VIEW, positions
from writetime.lake.replica_positions import replica_positions
from writetime.lake.retention import needed_changes
from writetime.lake.state import BASE, PACKED, erased_of, folded_commit, is_merged
from writetime.lake.table import LakeTable, find_version
from writetime.lake.view_retention import delete_files
from writetime.lake.views import time_now
from writetime.row_events.events import event_schema
from writetime.row_events.publish import PUBLISHED
from writetime.row_events.stream import extend
from writetime.row_events.stream_files import batch_files
from writetime.view.expected_rows import check_of
from writetime.view.placed_rows import PREFIX, is_placed
from writetime.view.refreshing import refresh

REPLICATION_SECONDS = 30.0
"""How long a program that replicates the table may take to read the changes."""

# Names in a log: of versions, also those of checksums of other programs, and what a repair or a kill left.
_VERSION = re.compile(r"\.?(\d{20})\..*")
_LEFT = re.compile(r".*\.damaged|_[0-9a-f]{32}\.tmp")


@dataclass(frozen=True)
class _Cut:
    """A change of files, and the number of rows that leave or lose their values."""

    change: TableChange
    rows: int


class Erasing:
    """The erasure of some places of a table, and what it has done."""

    def __init__(self, settings: Settings, table: LakeTable, places: ErasedPlaces) -> None:
        self._settings = settings
        self.table = table
        self.places = places
        self.done: dict[str, Counter[str]] = {}
        self.iceberg: list[dict[str, str]] = []
        # Larger than those of all parts, so that each run ends all work that began before it.
        self._number = max(erased_of(part.load()) for part in self._parts) + 1
        # The parts that have the number, and the files from before that, which no commit can add any more.
        self._fenced: set[str] = set()
        self._found: dict[str, list[fs.FileInfo]] = {}
        # Those that its commits have removed.
        self._removed: dict[str, set[str]] = defaultdict(set)
        # By part, the first version that is known to have nothing of the places.
        self._clean: dict[str, int] = {}
        self._view_is_whole = False

    def run(self) -> None:
        """Erase the places from the lake. Raise a `Transient` if another program must do something first: run this
        again.
        """
        require_right_clock(self.table.changes.storage)
        for _ in range(ATTEMPTS):
            before = self._rows()
            self._changes()
            self._state()
            self._view()
            self._events()
            if self._rows() == before:
                break
        else:
            raise self.table.changes.conflict()
        begun = [iceberg.begin_again() for iceberg in self.table.iceberg.values()]
        self.iceberg = [table for table in begun if table]
        self._logs()
        self._earlier()
        for part in self._parts:
            self._unnamed(part)
        self._plans()
        self._counted("cache")["decoded files deleted"] += self.table.cache.forget(self.places.tokens.tolist())

    @property
    def _parts(self) -> list[BucketedTable]:
        return [*self.table.parts, *([self.table.row_events] if self.table.row_events.exists() else [])]

    def _counted(self, part: BucketedTable | str) -> Counter[str]:
        name = part if isinstance(part, str) else _name(part)
        return self.done.setdefault(name, Counter())

    def _rows(self) -> int:
        return sum(counts["rows"] for counts in self.done.values())

    def _changes(self) -> None:
        """Erase from the changes."""
        table = self.table
        cut = of_changes(self.places, table.whole_schema(table.changes.load()))

        def made(now: TableVersion) -> _Cut:
            readers = _readers(table, now)

            def named(file: DataFile) -> tuple[str, Layout]:
                return _prefix(file, readers, now), COLD_LAYOUT if is_merged(file) else HOT_LAYOUT

            return self._cut(table.changes, now.files, cut, named)

        self._committed(table.changes, made, table.changes.commit)

    def _state(self) -> None:
        """Erase from the state, after it has folded all changes."""
        table = self.table
        _until_done(lambda: state.fold(table))
        cut = of_changes(self.places, table.whole_schema(table.changes.load()))

        def made(now: TableVersion) -> _Cut:
            return self._cut(
                table.state, now.files, cut, lambda file: (DROPPED if is_dropped(file.path) else "", HOT_LAYOUT)
            )

        def commit(now: TableVersion, change: TableChange, also: dict[str, int]) -> None:
            _until_done(lambda: self._raise_number(also[ERASED]))
            table.state.commit(now, change, also)

        clean = self._committed(table.state, made, commit)
        if any(position.state.version < clean for position in positions(table)):
            # Only with a newer version of the changes do view and row events record one of the state.
            _until_done(lambda: table.changes.commit(table.changes.load(), TableChange()))

    def _raise_number(self, number: int) -> None:
        """Raise the number of the changes: with a lower one than the state's, nothing is folded any more. If two
        erasures run at once, the other one's commits come between.
        """
        now = self.table.changes.load()
        if erased_of(now) < number:
            self.table.changes.commit(now, TableChange(), {ERASED: number})

    def _view(self) -> None:
        """Let the view follow, and erase from it what it has marked as removed."""
        table = self.table
        self._refresh()

        def made(now: TableVersion) -> _Cut:
            placed = [file for file in now.files if is_placed(file)]
            if self._view_is_whole:
                placed = []
            elif not VIEW.is_ours(now) or any(map(self._is_live_in, self._with_partitions(table.view, placed))):
                # Writes since the check, which may have been merged with older ones.
                self._refresh(whole=True)
                self._view_is_whole = True
                raise table.view.conflict()
            cut = of_view(self.places, table.view.storage)
            return self._cut(table.view, placed, cut, lambda _: (PREFIX, COLD_LAYOUT))

        self._committed(table.view, made, lambda now, change, also: VIEW.commit(table, now, change, also=also))

    def _is_live_in(self, file: DataFile) -> bool:
        return live_in_view(self.places, self.table.view.storage, file)

    def _refresh(self, *, whole: bool = False) -> None:
        follow_view(self._settings, self.table, whole=whole)

    def _events(self) -> None:
        """Let the row events follow, and take the values from those of the places."""
        table = self.table
        follow_events(table)
        if not table.row_events.exists():
            return

        def made(now: TableVersion) -> _Cut:
            cut = of_events(self.places)
            return self._cut(table.row_events, now.files, cut, lambda file: (prefix_of(file.path, 2), COLD_LAYOUT))

        self._committed(
            table.row_events, made, lambda now, change, also: ROW_EVENTS.commit(table, now, change, also=also)
        )

    def _committed(
        self,
        part: BucketedTable,
        made: Callable[[TableVersion], _Cut],
        commit: Callable[[TableVersion, TableChange, dict[str, int]], None],
    ) -> int:
        """Commit changes of files until none is left; return the first version that is known to need none."""
        for _ in range(ATTEMPTS):
            now, name = part.load(), _name(part)
            if name not in self._found:
                self._found[name] = part.storage.filesystem().get_file_info(fs.FileSelector("", recursive=True))
            try:
                found = made(now)
                if found.change.remove:
                    self._clean.pop(name, None)
                else:
                    clean = self._clean.setdefault(name, now.version)
                    if name in self._fenced:
                        return clean
                # Another erasure may run at the same time.
                number = erased_of(now) if name in self._fenced else max(self._number, erased_of(now) + 1)
                commit(now, found.change, {ERASED: number})
                self._fenced.add(name)
                self._removed[name] |= {file.path for file in found.change.remove}
                self._count(part, found)
            except Conflict:
                continue
        raise part.conflict()

    def _count(self, part: BucketedTable, found: _Cut) -> None:
        self._counted(part).update({"files written again": len(found.change.remove), "rows": found.rows})

    def _cut(
        self, part: BucketedTable, files: Sequence[DataFile], cut: Cut, named: Callable[[DataFile], tuple[str, Layout]]
    ) -> _Cut:
        """Write files again without the places."""
        removed: list[DataFile] = []
        written: list[WrittenFile] = []
        count = 0
        for file in self._with_partitions(part, files):
            prefix, layout = named(file)
            new, rows = rewritten(part.storage, file, cut, prefix, layout, without_nulls=part in self.table.parts[:2])
            if rows:
                removed.append(file)
                written += new
                count += rows
        return _Cut(TableChange(removed, written, is_new_data=False), count)

    def _with_partitions(self, part: BucketedTable, files: Sequence[DataFile]) -> list[DataFile]:
        """Return those of some files that have rows of the places, by bucket, statistics, keys and positions."""
        owners = self.places.buckets(self.table.buckets)
        own = [file for file in files if file.bucket in owners]
        self._counted(part)["files searched"] += len(own)
        return [file for file in own if self.places.may_be_in(part.storage, file.path)]

    def _logs(self) -> None:
        """Delete the logs from before the erasure, which have tokens and keys of the places."""
        table = self.table
        changes, merged = self._clean["changes"], self._clean["state"]
        require_replicated(table, changes)
        needed = needed_changes(table) or table.changes.load()
        if needed.version < changes:
            raise table.changes.conflict()
        first = min((position.state.version for position in positions(table)), default=table.state.load().version)
        if first < merged:
            raise table.state.conflict()
        for part, keep_from in ((table.changes, needed.version), (table.state, first)):
            self._trim(part, keep_from)
        for part in self._parts[2:]:
            self._trim(part, part.load().version)

    def _trim(self, part: BucketedTable, keep_from: int) -> None:
        part.write_checkpoint(keep_from)
        found = part.storage.filesystem().get_file_info(fs.FileSelector("_delta_log"))
        versions = {info.path: _VERSION.fullmatch(info.base_name) for info in found}
        gone = [path for path, match in versions.items() if match and int(match[1]) < keep_from]
        gone += [each.path for each in self._found[_name(part)] if _LEFT.fullmatch(each.base_name)]
        self._counted(part)["log files deleted"] += len(delete_files(part.storage, gone))

    def _earlier(self) -> None:
        """Erase from the changes of generations that have ended."""
        table = self.table

        def cut(rows: pa.Table, _file: DataFile) -> tuple[pa.Table, int]:
            require_no_bound(self.places, rows, table.name)
            erased = self.places.index(rows) >= 0
            return rows.filter(pa.array(~erased)), int(erased.sum())

        for number, generation in earlier_generations(table, table.changes.load()).items():
            there = [file for file in generation.files if self._exists(table.changes.storage, file.path)]
            found = self._cut(table.changes, there, cut, lambda _: ("", COLD_LAYOUT))
            if gone := {file.path for file in found.change.remove}:
                new = [DataFile(f.path, f.bucket, f.rows, f.size, time_now()) for f in found.change.add]
                kept = [file for file in generation.files if file.path not in gone]
                replace_files(table, number, replace(generation, files=(*kept, *new)))
                delete_files(table.changes.storage, gone)
                self._count(table.changes, found)

    @staticmethod
    def _exists(storage: Storage, path: str) -> bool:
        return storage.filesystem().get_file_info(path).is_file

    def _unnamed(self, part: BucketedTable) -> None:
        """Delete the files with rows of the places that no version names any more, or none ever named."""
        owners = {f"{PARTITION}={bucket}" for bucket in self.places.buckets(self.table.buckets)}
        kept = kept_files(self.table, math.inf) if part is self.table.changes else set[str]()
        named = part.load().by_path.keys() | kept
        gone = list(self._removed[_name(part)])
        for info in self._found[_name(part)]:
            folder = info.path.rpartition("/")[0]
            if folder == ICEBERG_FOLDER and not self.table.iceberg:
                # Metadata from when the setting was on.
                gone.append(info.path)
            is_unnamed = info.base_name.endswith(".parquet") and folder in owners and info.path not in named
            if is_unnamed and self._has_erased(part, info):
                gone.append(info.path)
        self._counted(part)["unnamed files deleted"] += len(delete_files(part.storage, {*gone} - named))

    def _has_erased(self, part: BucketedTable, info: fs.FileInfo) -> bool:
        """Return whether a file has rows that are erased, or may have them: rows of a view without places cannot be
        found, and a file that is cut, as by a kill, cannot be read.
        """
        table, storage = self.table, part.storage
        if part is table.view and not info.base_name.startswith(PREFIX):
            return True
        file = DataFile(info.path, ALL, 0, info.size, 0)
        cuts = {"view": partial(of_view, storage=storage), "row_events": of_events}
        cut = cuts.get(_name(part), partial(of_changes, schema=table.whole_schema(table.changes.load())))
        try:
            is_in = self.places.may_be_in(storage, info.path)
            return is_in and count_erased(storage, file, cut(self.places)) > 0
        except FileNotFoundError:
            return False
        except Transient:
            raise
        except WritetimeError:
            # It is cut, or has other types of columns, as that of an earlier table of the name.
            return True

    def _plans(self) -> None:
        """Delete the plans of an undo that have cells of the places."""
        filesystem, folders = self.table.storage.filesystem(), set[str]()
        for info in filesystem.get_file_info(fs.FileSelector("undo", allow_not_found=True, recursive=True)):
            folder = info.path.rpartition("/")[0]
            if info.base_name.endswith(".parquet") and self._is_of_plan(info.path):
                folders.add(folder)
        for folder in folders:
            filesystem.delete_dir(folder)
        self._counted("undo")["plans deleted"] += len(folders)

    def _is_of_plan(self, path: str) -> bool:
        try:
            return self.places.may_be_in(self.table.storage, path)
        except Unreadable:
            return True


def follow_view(settings: Settings, table: LakeTable, *, whole: bool = False) -> None:
    """Bring the view up to date with all changes, also if it has no deletion vectors. Raise as `refresh`."""
    _until_done(lambda: refresh(settings, table, map, check_of(settings, table), whole=whole))
    VIEW.move_on(table)


def follow_events(table: LakeTable) -> None:
    """Bring the row events, if there are any, up to date with all changes. Raise as `extend`."""
    if table.row_events.exists():
        _until_done(lambda: extend(table))


def _until_done(step: Callable[[], Any]) -> None:
    for _ in range(ATTEMPTS - 1):
        try:
            step()
            return
        except Conflict:
            time.sleep(0.05)
    step()


def _name(part: BucketedTable) -> str:
    return part.storage.address.rpartition("/")[2]


def _readers(table: LakeTable, changes: TableVersion) -> list[TableVersion]:
    """Return the versions of the changes that other steps have read, in order."""
    recorded = {folded_commit(table.state.load()), *(position.changes for position in positions(table))}
    recorded |= {position.commit for position in replica_positions(table)}
    known = sorted(each for each in recorded if each is not None and table.changes.has_commit(each, changes))
    return [version for each in known if (version := find_version(table.changes, each.version))]


def _prefix(file: DataFile, readers: Sequence[TableVersion], now: TableVersion) -> str:
    """Return the beginning of the name of a file that replaces one of the changes, so that the steps that have read
    that one do not read it, and the others do (`state.files_since`).
    """
    if file.path.rpartition("/")[2].startswith((BASE, PACKED)):
        return prefix_of(file.path, 2)
    first = next((version for version in readers if file.path in version.by_path), now)
    return f"{PACKED}{first.version}-"


def record(table: LakeTable, places: ErasedPlaces) -> int:
    """Record an erasure, unless the same one is recorded; return its number. Raise `Conflict` if another one is
    recorded at the same time: run this again.
    """
    folder, known_names = folder_of(table), all_erasures(table)
    ranges = zip(places.ranges.keys.to_pylist(), places.ranges.first.to_pylist(), places.until.tolist(), strict=True)
    # Writes of a place that the lake does not know may be on their way.
    until = {known_names.name_of(key, first): at for key, first, at in ranges if at != UNKNOWN}
    known = numbers_of(folder)
    for number in reversed(known):
        if read_record(folder, number) == until:
            return number
    number = max(known, default=0) + 1
    about = {"table": table.name, "recorded_at": instant_text(time_now()), "until": until}
    if not put_new(folder, record_name(number), orjson.dumps(about)):
        raise Conflict(f"another erasure of {table.name} has begun meanwhile: run this again")
    return number


def require_replicated(table: LakeTable, version: int) -> None:
    """Wait until other clusters have the changes up to a version. Raise a `Transient` if one does not get them."""

    def has_all() -> bool:
        return all(position.version >= version for position in replica_positions(table))

    if not wait_until(has_all, REPLICATION_SECONDS, 0.2):
        raise Transient(
            f"{table.name}: a replication must read the changes up to commit {version} first: run `writetime replicate "
            f"{table.name}`, and this again"
        )


def require_published(table: LakeTable, places: ErasedPlaces) -> None:
    """Raise a `Transient` if an event of the places is not published yet, and others of the table are: consumers
    must get the deletion of their rows.
    """
    stream = table.row_events.find()
    published = None if stream is None else stream.transaction(PUBLISHED)
    if stream is None or published is None:
        return
    schema, storage = event_schema(table.schema()), table.row_events.storage
    for last, file in batch_files(stream):
        if last > published and places.may_be_in(storage, file.path):
            events = read_file(storage, file.path, schema)
            waiting = erased_events(places, events)
            if mask_of(pc.and_(waiting, pc.greater(one_chunk(events["sequence"]), published))).any():
                raise Transient(
                    f"{table.name}: row events of what is to be erased are not published yet, or the lake does not "
                    f"know it yet (this takes a minute): run `writetime publish {table.name}`, and this again"
                )
