"""The items of a batch as blocks: their lengths and bytes in order, cut into compressed pieces.

A block is a row of the database. So large items and large batches do not make large rows, and small items share a row.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence

import zstandard

from writetime.core.counts import pluralize

BLOCK_BYTES = 256 << 10
# Blocks per partition, of at most 4 MiB.
CHUNK_BLOCKS = 16
_LENGTH = struct.Struct(">I")
MAX_ITEM_BYTES = (1 << 32) - 1


def encode(items: Sequence[bytes]) -> tuple[list[bytes], int, bytes]:
    """Return the blocks of items, the number of their bytes, and the SHA-256 of these."""
    content = b"".join(part for item in items for part in (_LENGTH.pack(len(item)), item))
    compress = zstandard.ZstdCompressor().compress
    blocks = [compress(content[i : i + BLOCK_BYTES]) for i in range(0, len(content), BLOCK_BYTES)]
    return blocks, len(content), hashlib.sha256(content).digest()


def decode(blocks: Iterable[bytes]) -> tuple[list[bytes], bytes]:
    """Return the items of blocks, and the SHA-256 of their bytes. Raises `ValueError` if a block is damaged, or one is
    missing.
    """
    decompress = zstandard.ZstdDecompressor().decompress
    try:
        content = b"".join(decompress(block, max_output_size=BLOCK_BYTES) for block in blocks)
        return list(_items(content)), hashlib.sha256(content).digest()
    except (zstandard.ZstdError, struct.error) as e:
        raise ValueError(str(e)) from None


def _items(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size + length
        if at > len(content):
            raise ValueError(f"an item ends {pluralize(at - len(content), 'byte')} after the last block")
        yield content[at - length : at]
