"""Writes the Puffin file of a snapshot: the deletion vectors that are new in it.

The format is that of Iceberg's puffin-spec.md ("File structure", "Footer structure", and the blob type
`deletion-vector-v1`). A blob has the bytes of Delta's vector, from its length to its checksum. pyiceberg (0.12) reads
such files, and does not write them.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

_MAGIC = b"PFA1"
# The length of the payload, and flags, all 0: it is not compressed.
_END = struct.Struct("<i4s")
# The field of a row's position in its file, which a vector is about (spec.md, "Reserved Field IDs").
_ROW_POSITION = 2147483645


@dataclass(frozen=True)
class Blob:
    """The place of a vector in a Puffin file (bytes)."""

    offset: int
    size: int


def puffin_file(vectors: Mapping[str, tuple[bytes, int]]) -> tuple[bytes, Sequence[Blob]]:
    """Return a file with the vectors of data files, and the place of each, in their order.

    Args:
        vectors: for the address of each data file, the bytes of its vector, and the number of rows in it.
    """
    parts, offset, blobs, described = [_MAGIC], len(_MAGIC), [], []
    for address, (data, rows) in vectors.items():
        parts.append(data)
        blobs.append(Blob(offset, len(data)))
        described.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_ROW_POSITION],
                # The writer does not know them, by the specification.
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": offset,
                "length": len(data),
                "properties": {"referenced-data-file": address, "cardinality": str(rows)},
            }
        )
        offset += len(data)
    payload = orjson.dumps({"blobs": described, "properties": {"created-by": "writetime"}})
    return b"".join([*parts, _MAGIC, payload, _END.pack(len(payload), bytes(4)), _MAGIC]), blobs
