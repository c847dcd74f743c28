"""The reader's cost of ScyllaDB's dictionaries: SSTables with a dictionary, and the same rows compressed without one.

ScyllaDB 2026.1 wrote the files, in chunks of 4 KiB. The peers have the same chunks, compressed by the same compressor
without a dictionary. Writetime reads both to the end, in turns.
"""

from collections.abc import Callable
from pathlib import Path

import lz4.block
import zstandard

from bench.storage.measure import Cost, in_turns
from tests.support.recordings import dictionary_table
from tests.support.rewriting import recompress
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable

# Passes are short: a file has 60,300 changes.
_PASSES = 10
# The compressor without a dictionary, by table. ScyllaDB's level of Zstandard is 3.
_PEERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "tl": ("LZ4Compressor", lz4.block.compress),
    "tz": ("ZstdCompressor", zstandard.ZstdCompressor(level=3).compress),
}


def compare(scratch: Path, passes: int) -> list[tuple[str, Cost, Cost]]:
    """Return for each compressor its name, and the costs of reading with and without a dictionary.

    Raises:
        RuntimeError: the rows differ.
    """
    found = []
    for table, (name, compress) in _PEERS.items():
        with_dictionary = dictionary_table(table)
        plain = recompress(with_dictionary, scratch / table, name, [], compress)
        data = [location.path("Data.db") for location in (with_dictionary, plain)]
        ours, theirs = in_turns(_scan, *data, passes=_PASSES * passes)
        if ours.rows != theirs.rows:
            raise RuntimeError(f"{name}: {ours.rows} rows with a dictionary, {theirs.rows} without")
        found.append((name, ours, theirs))
    return found


def _scan(data: str) -> int:
    (location,) = find_sstables(data)
    return sum(batch.num_rows for batch in SSTable(location).scan())
