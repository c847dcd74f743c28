"""Run all comparisons of the storage readers and print them as one table.

python -m bench.storage [--rows 2000000] [--writes 200000] [--passes 5]
"""

import tempfile
from pathlib import Path

import click

from bench.logs import log_to_file
from bench.storage import dictionaries, scans, segments, sstables
from bench.storage.measure import Comparison
from tests.support.format_server import FormatServer

KEYSPACE = "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"

HEAD = (
    f"{'Writetime':33}{'rows':>10}{'CPU s':>9}{'wall s':>8}  "
    f"{'peer':36}{'CPU s':>8}{'wall s':>8}{'times':>8}{'target':>8}"
)


def show(comparison: Comparison) -> None:
    """Print one line of the table."""
    c = comparison
    target = "" if c.target is None else f"{c.target:g}"
    print(
        f"{c.what:33}{c.ours.rows:>10,}{c.ours.cpu:>9.3f}{c.ours.wall:>8.2f}  {c.peer:36}"
        f"{c.theirs.cpu:>8.2f}{c.theirs.wall:>8.2f}{c.less_cpu:>8.1f}{target:>8}",
        flush=True,
    )


@click.command()
@click.option("--rows", default=2_000_000, show_default=True, help="Rows of the SSTable; four times as many for Spark.")
@click.option("--writes", default=200_000, show_default=True, help="Mutations in the commit log.")
@click.option("--passes", default=5, show_default=True, help="Passes of each reader; the first and the best one count.")
def main(rows: int, writes: int, passes: int) -> None:
    """Measure the readers of SSTables and commit logs against their peers, on the same files."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        location = sstables.write(scratch / "data" / "bench" / "events", rows)
        large = sstables.write(scratch / "large" / "bench" / "events", 4 * rows)
        print(HEAD)
        for comparison in sstables.compare(scratch, location, rows, passes):
            show(comparison)
        show(sstables.compare_parquet(scratch, location, passes))
        show(sstables.compare_writers(scratch, location, rows, passes))
        server = FormatServer(scratch / "server", "oa", commitlog_sync="periodic", commitlog_sync_period="1000ms")
        try:
            server.start()
            server.write([KEYSPACE, scans.CREATE])
            found = segments.write(server, writes)
            for comparison in segments.compare(scratch, server, found, passes):
                show(comparison)
            scans.serve(server, large)
            for comparison in scans.compare(server, large, passes):
                show(comparison)
        finally:
            server.stop()
        print("SSTables with dictionaries: CPU s with and without, times the CPU (target: at most 1.3)")
        for compressor, ours, theirs in dictionaries.compare(scratch, passes):
            print(f"{compressor:33}{ours.cpu:>9.3f}{theirs.cpu:>9.3f}{ours.cpu / theirs.cpu:>8.2f}")
        print("memory: rows, MiB of data, peak MiB before and after reading")
        for count, data, before, after in sstables.memory(location, large):
            print(f"{count:>12,}{data >> 20:>8}{before >> 20:>8}{after >> 20:>8}")


if __name__ == "__main__":
    log_to_file()
    main()
