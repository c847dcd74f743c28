"""Row events with their before image: updates per CPU second, and the cost of a batch as the table grows.

python -m bench.row_events [--rows 1000000] [--batches 5] [--batch 1000000] [--curve 100000 1000000 10000000]
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.core import config
from writetime.lake import state
from writetime.lake.changes import ChangeWriter
from writetime.lake.parquet import read_file
from writetime.lake.table import LakeTable, create_table
from writetime.row_events import stream
from writetime.row_events.batches import batch_files
from writetime.row_events.events import event_schema
from writetime.row_events.messages import encode_events
from writetime.schema.cql import parse_table
from writetime.storage.kernel.primitives import token_at

COLUMNS = {"a": pa.int32(), "b": pa.int64(), "c": pa.float64(), "d": pa.string(), "e": pa.string()}
SCHEMA = parse_table("CREATE TABLE bench.rows (id bigint PRIMARY KEY, a int, b bigint, c double, d text, e text)")
CHUNK = 200_000
_njit: Any = numba.njit
SMALL_BATCHES = 8


def tokens_of(ids: np.ndarray) -> np.ndarray:
    """Tokens of bigint keys."""
    keys = ids.astype(">i8")
    return _tokens(keys.ctypes.data, len(keys))


@_njit
def _tokens(keys: int, count: int) -> np.ndarray:
    tokens = np.empty(count, np.int64)
    for i in range(count):
        tokens[i] = token_at(keys + 8 * i, 8)
    return tokens


def changes(ids: np.ndarray, tokens: np.ndarray, chosen: dict[str, np.ndarray], at: int) -> pa.RecordBatch:
    """Changes of rows, written one after the other: `chosen` has for each column the rows in which it is written."""
    count = len(ids)
    full = change_schema(SCHEMA)
    keys = ids.astype(">i8").tobytes()
    offsets = np.arange(0, 8 * count + 1, 8, dtype=np.int32)
    random = np.random.default_rng(at)
    fields: dict[str, pa.Array] = {
        "kind": pa.array(["row"]).take(pa.array(np.zeros(count, np.int64))),
        "id": pa.array(ids),
        "key": pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(keys)]),
        "token": pa.array(tokens),
        "position": pa.array([b"\x38"]).take(pa.array(np.zeros(count, np.int64))),
    }
    times = pa.array(np.arange(at, at + count))
    for name, arrow in COLUMNS.items():
        numbers = pa.array(random.integers(0, 1 << 30, count))
        parts = [
            numbers.cast(arrow),
            times,
            pa.nulls(count, pa.int32()),
            pa.nulls(count, pa.int64()),
            pa.array(np.zeros(count, bool)),
        ]
        fields[name] = pa.StructArray.from_arrays(
            parts, fields=list(full.field(name).type), mask=pa.array(~chosen[name])
        )
    arrays = [fields.get(f.name, pa.nulls(count, f.type)) for f in full]
    return pa.RecordBatch.from_arrays(arrays, schema=full)


def whole(ids: np.ndarray, tokens: np.ndarray) -> Iterator[pa.RecordBatch]:
    """All rows, with all columns."""
    for start in range(0, len(ids), CHUNK):
        part = slice(start, start + CHUNK)
        yield changes(ids[part], tokens[part], {n: np.ones(len(ids[part]), bool) for n in COLUMNS}, 1)


def updates(ids: np.ndarray, tokens: np.ndarray, count: int, at: int, columns: int = 1) -> Iterator[pa.RecordBatch]:
    """Partial updates of rows at random, each of one column, or of more, at random."""
    random = np.random.default_rng(at)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        rows = random.integers(0, len(ids), size)
        places = random.random((size, len(COLUMNS))).argsort(axis=1)
        chosen = {name: places[:, i] < columns for i, name in enumerate(COLUMNS)}
        yield changes(ids[rows], tokens[rows], chosen, at + start)


def add(table: LakeTable, batches: Iterator[pa.RecordBatch], number: int) -> None:
    """Append a batch to the changes."""
    assert table.changes.append(ChangeWriter.of(table, SCHEMA).write(batches), "bench", number)


def new_table(folder: Path, rows: int) -> tuple[LakeTable, np.ndarray, np.ndarray]:
    """A table with rows in its state and in its stream of events."""
    ids = np.arange(rows, dtype=np.int64)
    tokens = tokens_of(ids)
    table = create_table(config.load(lake={"path": str(folder), "cache": str(folder.parent / "cache")}), SCHEMA)
    add(table, whole(ids, tokens), 1)
    state.fold(table)
    stream.extend(table)
    return table, ids, tokens


def cpu(function: Callable[..., int], *arguments: object) -> tuple[float, float, int]:
    """CPU seconds, wall seconds and the answer of a call."""
    wall, used = time.perf_counter(), time.process_time()
    answer = function(*arguments)
    return time.process_time() - used, time.perf_counter() - wall, answer


def small(table: LakeTable, ids: np.ndarray, tokens: np.ndarray, size: int) -> list[tuple[str, float]]:
    """Return the cost of each step for a small batch, in CPU seconds: the mean of some, because few are compacted."""
    steps = {"events": stream.extend, "fold": state.fold, "compaction": state.compact}
    used = dict.fromkeys(steps, 0.0)
    for number in range(size, size + SMALL_BATCHES):
        add(table, updates(ids, tokens, size, number << 32), number)
        for name, step in steps.items():
            used[name] += cpu(step, table)[0] / SMALL_BATCHES
    return list(used.items())


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
        table, ids, tokens = new_table(folder / "rate", options.rows)
        total = encoding = 0.0
        events = 0
        for number in range(2, options.batches + 2):
            add(table, updates(ids, tokens, options.batch, number << 32), number)
            used, wall, count = cpu(stream.extend, table)
            total += used
            events += count
            print(f"batch of {options.batch:,} updates: {count:,} events, {used:.1f} CPU s, {wall:.1f} s", flush=True)
            state.fold(table)
            state.compact(table)
        done = options.batch * options.batches
        print(f"{done:,} updates on {options.rows:,} rows, per CPU s:", end=" ")
        print(f"{done / total:,.0f} updates, {events / total:,.0f} events")
        rows = table.row_events
        for _, file in batch_files(rows.load())[-4:]:
            for batch in read_file(rows.storage, file.path, event_schema(SCHEMA)).to_batches():
                used, _, count = cpu(lambda part: len(encode_events(part, SCHEMA)), batch)
                encoding += used / count / 4
        print(f"Avro: {1 / encoding:,.0f} events per CPU s")
        for rows in options.curve:
            shutil.rmtree(folder)
            table, ids, tokens = new_table(folder / "curve", rows)
            for size in (1_000, 10_000):
                print(f"{rows:,} rows, batches of {size:,}, CPU s per batch:", end=" ")
                print(", ".join(f"{name} {used:.2f}" for name, used in small(table, ids, tokens, size)), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
