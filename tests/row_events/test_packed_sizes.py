"""The number of files of a stream depends on the size of its events, in whatever order large and small batches come.

Oracle: the bounds that the document states, on the sizes that the test made.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from writetime.delta.buckets import ALL
from writetime.delta.parquet import PARTITION, WrittenFile
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import DataFile
from writetime.row_events import packing

KIB, MIB = 1 << 10, 1 << 20
FAN = 4
LARGEST, MOST = MIB, 64 * MIB
# Bytes of Parquet, and in memory.
SIZES = [
    (size, factor * size)
    for size in (KIB, 100 * KIB, 250 * KIB, 300 * KIB, MIB, MIB + 1, 5 * MIB)
    for factor in (1, 3, 100, 1000)
]
# The batches since the last large one: fewer than `FAN` of the second class, and between them runs of the first class,
# each with the batches of a turn of packing.
NEWEST = FAN * 2 * FAN


@dataclass
class Stream:
    """A stream of files that have sizes only. The tables that are read from them have the sizes, too."""

    files: list[DataFile] = field(default_factory=list)
    storage: Storage = field(default_factory=lambda: Storage("nowhere"))
    fields: pa.Schema = field(default_factory=lambda: pa.schema([(PARTITION, pa.int32())]))

    def load(self) -> "Stream":
        return self

    def transaction(self, _: str) -> None:
        return None

    def add(self, number: int, size: int, in_memory: int) -> None:
        self.files.append(DataFile(f"batch-{number}-x.{in_memory}.parquet", ALL, 1, size, 0))

    def read(self, _: Storage, path: str, __: pa.Schema) -> pa.Table:
        (file,) = (file for file in self.files if file.path == path)
        return pa.table({"token": [0], "size": [file.size], "in_memory": [packing.uncompressed_size(_, path)]})

    def write(self, _: Storage, events: pa.Table, bucket: int, __: Any, prefix: str) -> WrittenFile:
        size, in_memory = (sum(events[name].to_pylist()) for name in ("size", "in_memory"))
        assert in_memory <= FAN * MOST
        return WrittenFile(f"{prefix}packed.{in_memory}.parquet", bucket, len(events), size, 0, 0)

    def commit(self, _: "Stream", change: TableChange, *__: Any, **___: Any) -> None:
        assert {file.path for file in change.remove} <= {file.path for file in self.files}
        self.files = [file for file in self.files if file not in change.remove]
        self.files += [DataFile(file.path, file.bucket, file.rows, file.size, 0) for file in change.add]


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.integers(1, 20)), min_size=1, max_size=6))
@example([((KIB, KIB), 3), ((5 * MIB, 5 * MIB), 1)])
@example([((KIB, KIB), 2), ((300 * KIB, 300 * MIB), 1)])
@examples(200, deadline=None)
def test_files_are_few_for_any_order_of_sizes(pattern: list[tuple[tuple[int, int], int]]) -> None:
    """The oracle is arithmetic: there are as many large files as large batches, and as small ones can become. Before
    each of them is at most one file of small batches.
    """
    stream = Stream()
    table: Any = SimpleNamespace(row_events=stream, iceberg={})
    batches = [size for size, count in pattern for _ in range(count)]
    batches = (batches * 200)[:200]
    limits = {"FAN": FAN, "SIZE_CLASSES": (LARGEST // FAN, LARGEST), "SORTED_AT_ONCE": FAN * MOST}
    with patch.multiple(packing, read_file=stream.read, write_file=stream.write, **limits):
        for number, (size, in_memory) in enumerate(batches, 1):
            stream.add(number, size, in_memory)
            if number % FAN == 0:
                packing.pack_events(table)
    small = [batch for batch in batches if batch[0] <= LARGEST and batch[1] <= MOST]
    on_disk, in_memory = (sum(sizes) for sizes in zip((0, 0), *small, strict=True))
    large = len(batches) - len(small) + on_disk / LARGEST + in_memory / MOST
    assert len(stream.files) <= 2 * large + NEWEST
    assert sum(file.size for file in stream.files) == sum(size for size, _ in batches)
