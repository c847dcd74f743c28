"""Takes commit log segments apart, and builds them from parts."""

import struct
import zlib

from writetime.storage.segment import Segment


def mutations_of(segment: Segment) -> list[bytes]:
    """Return the bodies of the mutations of a segment."""
    found = []
    for section in segment.sections():
        data, p = section.data.tobytes(), 0
        while p < len(data):
            (size,) = struct.unpack_from(">i", data, p)
            found.append(data[p + 8 : p + 8 + size])
            p += size + 12
    return found


def one_section(segment: Segment, mutations: list[bytes]) -> bytes:
    """Make a plain segment of one section with these mutations, with right checksums."""
    header = struct.pack(">iqH", segment.version, segment.id, 2) + b"{}"
    low, high = segment.id & 0xFFFFFFFF, segment.id >> 32
    header += struct.pack(">I", zlib.crc32(b"{}", zlib.crc32(struct.pack(">iIIi", segment.version, low, high, 2))))
    framed = b""
    for mutation in mutations:
        size = struct.pack(">i", len(mutation))
        crc = zlib.crc32(size)
        framed += size + struct.pack(">I", crc) + mutation + struct.pack(">I", zlib.crc32(mutation, crc))
    marker = struct.pack(">I", zlib.crc32(struct.pack(">IIi", low, high, len(header))))
    return header + struct.pack(">i", len(header) + 8 + len(framed)) + marker + framed
