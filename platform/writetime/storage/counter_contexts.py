"""Counters in files: contexts of shards (`org.apache.cassandra.db.context.CounterContext`).

| part of a context | bytes |
| --- | --- |
| number of header elements | 2 |
| header elements | 2 each |
| shards | 32 each: id (16), clock (8), count (8) |

A header element names a shard by its index. For a global shard the element is the index minus 32768, for a local shard
the index itself. Shards without an element are remote. Cassandra 2.1 and later, and ScyllaDB (`write_counter_value` in
`sstables/writer.hh`), write only global shards.
"""

import struct
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from writetime.changes.model import GLOBAL, LOCAL, REMOTE, SHARD_KINDS

_SHARD_BYTES = 32
_DASHES = (8, 13, 18, 23)
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True)
class Shards:
    """The shards of counters, in order: the number of each counter's shards, and the sum of their counts."""

    per_counter: np.ndarray
    sums: np.ndarray
    ids: pa.Array
    kinds: pa.Array
    clocks: np.ndarray
    counts: np.ndarray


def decode(offsets: np.ndarray, content: np.ndarray) -> Shards:
    """Decode contexts that the kernel has checked, by their bytes and their starts and the end of the last one. A
    context without bytes has no shards.
    """
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    elements = np.zeros(len(starts), np.int64)
    some = lengths > 0
    elements[some] = np.abs(_numbers(content, starts[some], ">i2"))
    headers = np.where(some, 2 + 2 * elements, 0)
    per_counter = (lengths - headers) // _SHARD_BYTES
    first = np.cumsum(per_counter) - per_counter
    at = np.repeat(starts + headers, per_counter) + _SHARD_BYTES * _places(per_counter)
    kinds = np.full(len(at), SHARD_KINDS.index(REMOTE), np.int8)
    named = _numbers(content, np.repeat(starts + 2, elements) + 2 * _places(elements), ">i2").astype(np.int64)
    of_kind = np.where(named < 0, SHARD_KINDS.index(GLOBAL), SHARD_KINDS.index(LOCAL))
    kinds[np.repeat(first, elements) + (named & 0x7FFF)] = of_kind
    counts = _numbers(content, at + 24, ">i8")
    # The sum wraps around, as in the database.
    total = np.concatenate([[0], np.cumsum(counts)])
    return Shards(
        per_counter,
        total[first + per_counter] - total[first],
        _texts(_bytes(content, at, 16)),
        pa.DictionaryArray.from_arrays(pa.array(kinds), list(SHARD_KINDS)).dictionary_decode(),
        _numbers(content, at + 16, ">i8"),
        counts,
    )


def _places(counts: np.ndarray) -> np.ndarray:
    """Number the parts of each entry from 0."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _bytes(content: np.ndarray, at: np.ndarray, length: int) -> np.ndarray:
    return content[at[:, np.newaxis] + np.arange(length)]


def _numbers(content: np.ndarray, at: np.ndarray, code: str) -> np.ndarray:
    parts = np.ascontiguousarray(_bytes(content, at, np.dtype(code).itemsize))
    return parts.view(code).ravel().astype(code.replace(">", "="))


def _texts(ids: np.ndarray) -> pa.Array:
    """Return UUIDs as texts of 36 characters."""
    count = len(ids)
    characters = np.full((count, 36), ord("-"), np.uint8)
    digits = np.stack([_DIGITS[ids >> 4], _DIGITS[ids & 15]], axis=2).reshape(count, 32)
    characters[:, np.delete(np.arange(36), _DASHES)] = digits
    offsets = np.arange(0, 36 * count + 1, 36, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(characters)])


def encode(shards: pa.ListArray) -> pa.Array:
    """Encode the contexts of counters: the inverse of `decode`. A null has no bytes. Of a node's shards, which merged
    changes have in order, the greatest is written: a database would add them up.
    """
    found = []
    for some in shards.to_pylist():
        if some is None:
            found.append(b"")
            continue
        of_counter = [shard for shard, before in zip(some, [None, *some], strict=False) if not _is_of(before, shard)]
        named = [i for i, shard in enumerate(of_counter) if shard["kind"] != REMOTE]
        parts = [struct.pack(">h", len(named))]
        parts += [struct.pack(">h", i - (1 << 15) if of_counter[i]["kind"] == GLOBAL else i) for i in named]
        parts += [UUID(s["id"]).bytes + struct.pack(">qq", s["clock"], s["count"]) for s in of_counter]
        found.append(b"".join(parts))
    return pa.array(found, pa.binary())


def _is_of(one: dict[str, Any] | None, other: dict[str, Any]) -> bool:
    return one is not None and one["id"] == other["id"]
