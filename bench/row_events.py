"""Row events with their before image: updates per CPU second, and the cost of a batch as the table grows.

python -m bench.row_events [--rows 1000000] [--batches 5] [--batch 1000000] [--curve 100000 1000000 10000000]
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pyarrow as pa

from bench.generated import ROWS, add, first_writes, updates
from writetime.core import config
from writetime.delta.parquet import read_file
from writetime.lake import state
from writetime.lake.table import LakeTable, create_table
from writetime.row_events import stream
from writetime.row_events.events import event_schema
from writetime.row_events.json_messages import JsonMessages
from writetime.row_events.messages import encode_events
from writetime.row_events.stream_files import batch_files

SMALL_BATCHES = 8


def new_table(folder: Path, rows: int) -> LakeTable:
    """Return a table with rows in its state and in its stream of events."""
    table = create_table(config.load(lake={"path": str(folder), "cache": str(folder.parent / "cache")}), ROWS)
    add(table, ROWS, first_writes(ROWS, rows), 1)
    state.fold(table)
    stream.extend(table)
    return table


def cpu(function: Callable[..., int], *arguments: object) -> tuple[float, float, int]:
    """Return the CPU seconds, the wall seconds and the result of a call."""
    wall, used = time.perf_counter(), time.process_time()
    answer = function(*arguments)
    return time.process_time() - used, time.perf_counter() - wall, answer


def small(table: LakeTable, rows: int, size: int) -> list[tuple[str, float]]:
    """Return the mean cost of each step for small batches, in CPU seconds. Few of the batches are compacted."""
    steps = {"events": stream.extend, "fold": state.fold, "compaction": state.compact}
    used = dict.fromkeys(steps, 0.0)
    for number in range(size, size + SMALL_BATCHES):
        add(table, ROWS, updates(rows, size, number << 32), number)
        for name, step in steps.items():
            used[name] += cpu(step, table)[0] / SMALL_BATCHES
    return list(used.items())


def encode_all(table: LakeTable) -> None:
    """Print the rate at which the events of the last files become messages, by format."""
    forms: dict[str, Callable[[pa.RecordBatch], object]] = {"Avro": lambda events: encode_events(events, ROWS)}
    for flat, with_schema in product((False, True), (False, True)):
        made = JsonMessages(ROWS, flat=flat, with_schema=with_schema)
        name = f"{'flat' if flat else 'debezium'}, {'with' if with_schema else 'without'} schemas"
        forms[name] = lambda events, made=made: (made.keys(events), made.values(events, 0))
    files = [file for _, file in batch_files(table.row_events.load())[-4:]]
    read = [read_file(table.row_events.storage, file.path, event_schema(ROWS)) for file in files]
    # The parts have the size of those that are published.
    parts = [part for events in read for part in events.to_batches(10_000)]
    for name, encode in forms.items():
        used = sum(cpu(lambda encode, part: len([encode(part)]), encode, part)[0] for part in parts)
        print(f"{name}: {sum(part.num_rows for part in parts) / used:,.0f} events per CPU s", flush=True)


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1_000_000)
    parser.add_argument("--curve", type=int, nargs="*", default=[100_000, 1_000_000, 10_000_000])
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        table = new_table(folder / "rate", options.rows)
        total = 0.0
        events = 0
        for number in range(2, options.batches + 2):
            add(table, ROWS, updates(options.rows, options.batch, number << 32), number)
            used, wall, count = cpu(stream.extend, table)
            total += used
            events += count
            print(f"batch of {options.batch:,} updates: {count:,} events, {used:.1f} CPU s, {wall:.1f} s", flush=True)
            state.fold(table)
            state.compact(table)
        done = options.batch * options.batches
        print(f"{done:,} updates on {options.rows:,} rows, per CPU s:", end=" ")
        print(f"{done / total:,.0f} updates, {events / total:,.0f} events")
        encode_all(table)
        for rows in options.curve:
            shutil.rmtree(folder)
            table = new_table(folder / "curve", rows)
            for size in (1_000, 10_000):
                print(f"{rows:,} rows, batches of {size:,}, CPU s per batch:", end=" ")
                print(", ".join(f"{name} {used:.2f}" for name, used in small(table, rows, size)), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
