"""From a command to a table that is back: `writetime restore --into`, and a backup's way, on the same rows and node.

python -m bench.restore [--rows 1000000]

The backup's way is that of Cassandra Medusa on one node: `nodetool snapshot`, a copy of the files to another folder, a
copy back, and `nodetool import`. It has the table as of the snapshot, and compares nothing. `writetime restore` writes
the table as of an instant, imports it, and compares each cell with the lake. Seconds are wall time; CPU seconds are
those of all programs but the node, and of the node.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import psutil

from bench.logs import log_to_file
from bench.storage import scans, sstables
from tests.support.format_server import FormatServer
from tests.support.settings import write_settings
from writetime.clients.node_snapshots import take_snapshot
from writetime.core import config

KEYSPACE = "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
COPY = "CREATE TABLE bench.from_backup " + scans.CREATE.partition("events ")[2]


def measured(what: str, server: FormatServer, work: Callable[[], None]) -> float:
    """Do the work, and print its cost; return its wall seconds."""
    node = psutil.Process(server.pid())
    begin, of_node, of_others = time.monotonic(), sum(node.cpu_times()[:2]), _children()
    work()
    seconds = time.monotonic() - begin
    of_node = sum(node.cpu_times()[:2]) - of_node
    print(
        f"{what:28}{seconds:>8.1f} s{_children() - of_others:>8.1f} CPU s{of_node:>8.1f} CPU s of the node", flush=True
    )
    return seconds


def _children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def writetime(*arguments: str) -> None:
    """Run a command, which must succeed."""
    done = subprocess.run([sys.executable, "-m", "writetime", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


@click.command()
@click.option("--rows", default=1_000_000, show_default=True)
def main(rows: int) -> None:
    """Measure both ways, one after the other, and print the ratio."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        server = FormatServer(scratch / "server", "oa")
        settings = config.load(
            cassandra={"port": server.port}, lake={"path": str(scratch / "lake"), "cache": str(scratch / "cache")}
        )
        write_settings(settings, scratch / "writetime.toml")
        os.environ["WRITETIME_CONFIG"] = str(scratch / "writetime.toml")
        try:
            server.start()
            server.write([KEYSPACE, scans.CREATE, COPY])
            scans.serve(server, sstables.write(scratch / "made" / "bench" / "events", rows))
            (snapshot,) = take_snapshot(settings, "bench.events", "bench")
            writetime("backfill", "bench.events", str(snapshot))
            folder, backup, back = (scratch / name for name in ("restore", "backup", "bench"))
            arguments = ["restore", "bench.events", "--to", str(folder), "--into", "bench.from_lake"]
            ours = measured("writetime restore", server, lambda: writetime(*arguments))
            repeated = measured("... the comparison alone", server, lambda: writetime(*arguments))

            def by_backup() -> None:
                (snapshot,) = take_snapshot(settings, "bench.events", "backup")
                shutil.copytree(snapshot, backup)
                shutil.copytree(backup, back / "from_backup")
                server.nodetool("import", "bench", "from_backup", str(back / "from_backup"))

            theirs = measured("snapshot, copies and import", server, by_backup)
            alone = (ours - repeated) / theirs
            print(f"{rows:,} rows: {ours / theirs:.1f} times the seconds, {alone:.1f} without the comparison")
        finally:
            server.stop()


if __name__ == "__main__":
    log_to_file()
    main()
