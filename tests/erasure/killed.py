"""A program that erases, is killed at each of its writes in turn, and is run again each time.

python -m tests.erasure.killed FOLDER [EVERY [FIRST]]

It prints one JSON object per line: the place of the kill, the values that are left after the second run, and the rows
and events of others. The process itself never works on a lake: a fork would inherit threads that do not exist.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.erasure.people import Lake, all_values, people, values_left
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.storage import Storage
from writetime.erasure import erasing
from writetime.iceberg import metadata_files

EVERYONE = people(5)
GONE, OTHERS = EVERYONE[:2], EVERYONE[2:]
MOST_KILLS = 1000


def in_child(work: Callable[[], object]) -> int:
    """Work in a separate process; return how it ended."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        work()
    except BaseException as e:
        print(repr(e), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def kill_at(count: int) -> None:
    """Kill this process before the write of this number: of a file or its name, a checkpoint, or a deletion."""
    left = count

    def killed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    delete_files = erasing.delete_files

    def delete_each(storage: Storage, paths: Iterable[str]) -> list[str]:
        """Each deletion is a write of its own."""
        return [gone for path in sorted(paths) for gone in killed(delete_files)(storage, [path])]

    setattr(erasing, "delete_files", delete_each)  # noqa: B010 (its type does not matter here)
    for owner, name in (
        (Storage, "writing"),
        (Storage, "sync"),
        (Path, "hardlink_to"),
        (Path, "unlink"),
        (BucketedTable, "write_checkpoint"),
        (metadata_files, "delete"),
        (erasing, "replace_files"),
    ):
        setattr(owner, name, killed(getattr(owner, name)))


def held(folder: Path) -> dict[str, Any]:
    """What others have, and the values that are left."""
    lake = Lake(folder, iceberg=True)
    found = {"view": lake.shown(), "events": repr(lake.events_of(OTHERS)), "left": lake.left_of(GONE)}
    return found | {"others": values_left(folder, OTHERS).keys() == all_values(OTHERS)}


def main(root: Path, every: int = 1, first: int = 1) -> None:
    """Kill at writes, and run again."""
    pa.set_cpu_count(1)
    # The first call of compiled code loads its libraries.
    all_values(EVERYONE)
    filled = root / "filled"
    assert in_child(lambda: Lake(filled, iceberg=True).fill(EVERYONE, GONE)) == 0
    for number in range(first, MOST_KILLS, every):
        folder = root / str(number)
        shutil.copytree(filled, folder)

        def run(number: int = number, folder: Path = folder) -> None:
            lake = Lake(folder, iceberg=True)
            kill_at(number)
            lake.erase(GONE)

        ended = in_child(run)
        assert ended in {0, signal.SIGKILL}
        assert in_child(lambda folder=folder: Lake(folder, iceberg=True).erase(GONE)) == 0
        assert in_child(lambda folder=folder: (folder / "held.json").write_text(json.dumps(held(folder)))) == 0
        found = json.loads((folder / "held.json").read_text())
        print(json.dumps({"kill_at": number, "killed": ended != 0} | found), flush=True)
        shutil.rmtree(folder)
        if not ended:
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
