"""Buckets: equal token ranges, each the unit of one task and of one folder.

The bucket of a token is its top bits, so a bucket is a token range, and SSTables, which are sorted by token, can be
read by bucket without a shuffle. The number of buckets is a power of two and is fixed when a lake table is created.

Few rows become one file of all buckets, so that a small batch costs one file. Its bucket is `ALL`. Large rows are
always written by bucket, because the memory of a task and the size of an Arrow array are limited. Tasks read files of
all buckets by parts, which are equal ranges of buckets. There are as few parts as these limits allow.
"""

from typing import TypeVar

import numpy as np
import pyarrow as pa

from writetime.core.errors import WritetimeError
from writetime.core.setting_types import power_of_two

Number = TypeVar("Number", int, np.ndarray)
ALL = -1
"""The bucket of a file with rows of all buckets."""

FEW_ROWS = 1 << 12
"""Rows are few if they are fewer than this per bucket."""

MOST_ROW_BYTES = 256 << 20
"""Rows are one file of all buckets only up to this size in memory: several such files are merged or packed in one task,
and an Arrow array of texts holds 2 GiB.
"""


def check_buckets(buckets: int) -> int:
    """Return the number of buckets.

    Raises:
        WritetimeError: it is not a power of two up to 65,536.
    """
    try:
        return power_of_two(buckets)
    except ValueError as e:
        raise WritetimeError(str(e)) from None


def buckets_of(tokens: pa.Array | pa.ChunkedArray, buckets: int) -> np.ndarray:
    """Return the bucket of each token."""
    bits = buckets.bit_length() - 1
    # A shift by all 64 bits is undefined.
    if bits == 0:
        return np.zeros(len(tokens), np.int32)
    unsigned = tokens.to_numpy(zero_copy_only=False).view(np.uint64) ^ np.uint64(1 << 63)
    return (unsigned >> np.uint64(64 - bits)).astype(np.int32)


def are_few(rows: int, buckets: int, size: int = 0) -> bool:
    """Return whether rows, of a size in memory (bytes), are one file of all buckets, and not one per bucket."""
    return rows < FEW_ROWS * buckets and size <= MOST_ROW_BYTES


def count_parts(buckets: int, size: int) -> int:
    """Return the number of parts of the token range, each for one task, into which rows of a size in memory (bytes) are
    split. It is the least number for which parts are small enough, and at most one per bucket.
    """
    parts = 1
    while parts < buckets and size > parts * MOST_ROW_BYTES:
        parts *= 2
    return parts


def bucket_of_part(part: int, parts: int, buckets: int) -> int:
    """Return the bucket of the files of a part of the token range: its own one, or `ALL` if it has several."""
    return part if parts == buckets else ALL


def bucket_of_few(tokens: pa.ChunkedArray, buckets: int) -> int:
    """Return the bucket of a file with these tokens: the one that has them all, or else `ALL`."""
    numbers = buckets_of(tokens, buckets)
    return int(numbers[0]) if len(numbers) and (numbers == numbers[0]).all() else ALL


def token_range(bucket: int, buckets: int) -> tuple[int, int]:
    """Return the first and the last token of a bucket."""
    size = (1 << 64) // buckets
    first = -(1 << 63) + bucket * size
    return first, first + size - 1


def buckets_of_share(share: int, shares: int, buckets: int) -> range:
    """Return the buckets that start in one of equal shares of the token range."""
    return range(-(-share * buckets // shares), -(-(share + 1) * buckets // shares))


def partition_of_bucket(bucket: Number, buckets: int, partitions: int) -> Number:
    """Return the Kafka partition of a bucket (or of many): each partition has a range of buckets, and so of tokens."""
    return bucket * partitions // buckets
