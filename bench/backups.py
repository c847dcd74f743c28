"""The cost of `writetime backfill` per night, from the snapshots of three nodes.

python -m bench.backups [--rows 100000] [--sstables 8]

In the first night, each node has some SSTables, and the lake has none of them. In the second night, each node has
flushed one more. In the third night, nothing is new.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

from bench.storage.sstables import write
from writetime.storage.locations import Location

_NODES, _ID = 3, UUID(int=1)
_CQL = (
    "CREATE TABLE bench.events (id uuid, n int, kind text, amount bigint, price double, at timestamp, note text, "
    f"PRIMARY KEY (id, n)) WITH ID = {_ID};"
)


def snapshot(place: Path, night: int, sstables: list[Location]) -> None:
    """Add a snapshot with these SSTables to each node, as hard links like those of a real snapshot."""
    for node in range(1, _NODES + 1):
        folder = place / f"node-{node}" / "data" / "bench" / f"events-{_ID.hex}" / "snapshots" / f"night{night}"
        folder.mkdir(parents=True)
        (folder / "schema.cql").write_text(_CQL)
        for number, sstable in enumerate(sstables, 1):
            for file in Path(sstable.folder).iterdir():
                os.link(file, folder / file.name.replace(f"-{sstable.id}-", f"-{number}-", 1))


def backfill(home: Path) -> None:
    """Run the command, and print its output and its cost."""
    begin, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "writetime", "backfill", "bench.events", str(home / "place")],
        env=os.environ | {"WRITETIME_LAKE__PATH": str(home / "lake")},
        capture_output=True,
        text=True,
        check=True,
    )
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    [found] = [line for line in done.stderr.splitlines() if line.endswith("SSTables new")]
    print(f"{found}: {time.monotonic() - begin:.1f} s, {cpu:.1f} CPU seconds; {done.stdout.strip()}", flush=True)


def main() -> None:
    """Measure, and print the cost of each night."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="of each SSTable")
    parser.add_argument("--sstables", type=int, default=8, help="of each node in the first night")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, sstables = Path(folder), []
        for number in range(arguments.sstables + 1):
            # Each SSTable has another number of rows, so no two have the same content.
            sstables.append(write(home / str(number) / "bench" / "events", arguments.rows + 16 * number))
        for night, count in enumerate((arguments.sstables, arguments.sstables + 1, arguments.sstables + 1), 1):
            shutil.rmtree(home / "place", ignore_errors=True)
            snapshot(home / "place", night, sstables[:count])
            backfill(home)


if __name__ == "__main__":
    main()
