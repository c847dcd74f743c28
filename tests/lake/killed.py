"""A program that works on a lake, is killed at each commit in turn, and is run again each time.

python -m tests.lake.killed FOLDER [EVERY [FIRST]]

It kills at each commit, or at every third from the first one on, for example. It prints one JSON object per line: the
place of the kill, the rows of the view right after it, and the contents of the lake after the second run. The process
itself never works on a lake: a fork would inherit threads that do not exist.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, settings_at, write
from writetime.changes.model import change_schema
from writetime.core.errors import WritetimeError
from writetime.delta import commits
from writetime.delta.parquet import read_file
from writetime.lake import retention, state, views
from writetime.lake.bucket_contents import levels_of
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.merge import merge
from writetime.view.refreshing import refresh

_write_commit = commits.write_commit
# In microseconds: some of the deletions are from before it.
HORIZON = 2


def deleted(n: int, at: int) -> dict[str, Any]:
    """A row that is deleted, in the second 0."""
    return {**write(1, n, at), "marker": None, "tombstone": {"write_time": at, "deletion_time": 0}}


def work(folder: Path) -> Iterator[LakeTable]:
    """Do some of everything that commits; return the table after each refresh."""
    settings = settings_at(folder, buckets=1)
    table = create_table(settings, SCHEMA)
    for number in range(4):
        rows = [write(i % 3, i, number, v=f"{number}-{i}") for i in range(number, 12, number + 1)]
        add(table, [*rows, deleted(number, number)], number)
        state.fold(table)
        refresh(settings, table)
        yield table
    state.compact(table)
    state.drop_tombstones(table, HORIZON)
    # Late writes: of a row whose deletion was dropped, and of others.
    add(table, [write(1, n, 1, v="late") for n in range(1, 14)], 4)
    state.fold(table)
    refresh(settings, table)
    yield table
    add(table, [deleted(3, HORIZON + 1)], 5)
    state.fold(table)
    state.drop_tombstones(table, HORIZON + 1)
    add(table, [write(1, 3, 1, v="late")], 6)
    state.fold(table)
    retention.trim_history(table, views.time_now())
    refresh(settings, table)
    yield table
    refresh(settings, table, whole=True)
    yield table


def compacted(table: LakeTable) -> list[str]:
    """Return the rows of the compacted view, as another reader finds them."""
    query = QueryBuilder().register("view", DeltaTable(table.view.storage.address))
    found = pa.table(query.execute("SELECT * EXCLUDE token_bucket FROM view").read_all())
    return sorted(map(str, view_rows([found])))


def held(table: LakeTable) -> dict[str, Any]:
    """The lake's rows, and a digest of its state."""
    newest = table.state.load()
    schema = table.schema()
    levels = [read_file(table.state.storage, f.path, change_schema(schema)) for f in levels_of(newest)]
    merged = merge(levels, schema)
    return {
        "virtual": view_rows(views.virtual(table)),
        "compacted": compacted(table),
        "state": str(merged.to_pylist()),
        "as_of": view_rows(views.virtual(table, views.time_now())),
    }


def child(folder: Path, kill_at: int | None, *, after: bool) -> int:
    """Work in a separate process, which is killed at a commit; return how it ended."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    count = 0

    def killed(commit: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == kill_at and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            done = commit(*arguments)
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return call

    setattr(commits, "write_commit", killed(_write_commit))  # noqa: B010 (its arguments do not matter here)
    refreshed = []
    for table in work(folder):
        if kill_at is not None:
            refreshed.append(compacted(table))
    (folder / "held.json").write_text(json.dumps(held(open_table(settings_at(folder, buckets=1), SCHEMA.full_name))))
    (folder / "refreshed.json").write_text(json.dumps(refreshed))
    os._exit(0)


def left(folder: Path) -> list[str] | None:
    """Return the rows of the view that a killed program left, as another process reads them; None without a view."""
    pid = os.fork()
    if pid == 0:
        try:
            rows = compacted(open_table(settings_at(folder, buckets=1), SCHEMA.full_name))
        except (TableNotFoundError, WritetimeError):
            rows = None
        (folder / "left.json").write_text(json.dumps(rows))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "the view cannot be read"
    return json.loads((folder / "left.json").read_text())


def main(root: Path, every: int = 1, first: int = 1) -> None:
    """Kill at commits, before or after them, and run again."""
    pa.set_cpu_count(1)
    # The first call of compiled code loads its libraries, which takes longer than the work of a child process.
    write(1, 1, 1)
    for kill_at in range(first, 100, every):
        # Right before a commit, when its files are there and nothing names them, or right after it.
        after = bool(kill_at % 2)
        folder = root / str(kill_at)
        killed = child(folder, kill_at, after=after) == signal.SIGKILL
        rows = left(folder)
        # Only the first run of a folder shows the view after each refresh, if nothing killed it.
        refreshed = None if killed else json.loads((folder / "refreshed.json").read_text())
        assert child(folder, None, after=after) == 0
        line = {"kill_at": kill_at, "after": after, "killed": killed, "left": rows, "refreshed": refreshed}
        print(json.dumps(line | json.loads((folder / "held.json").read_text())), flush=True)
        if not killed:
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
