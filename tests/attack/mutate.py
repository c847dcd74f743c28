"""Ways to change bytes at random."""

import random
import struct

_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_LONG_EDGES = (*_EDGES, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def mutate(data: bytes, r: random.Random, *, same_length: bool = False) -> bytes:
    """Return bytes with one to eight changes."""
    broken = bytearray(data)
    for _ in range(r.choice([1, 1, 1, 2, 3, 8])):
        _change(broken, r, same_length=same_length)
    return bytes(broken)


def _change(data: bytearray, r: random.Random, *, same_length: bool) -> None:
    kinds = ["flip", "edge", "number"] + ([] if same_length else ["cut", "delete", "insert", "repeat"])
    kind = r.choice(kinds)
    at = r.randrange(len(data) + 1)
    span = r.choice([1, 2, 4, 8, 16, 100])
    match kind:
        case "insert":
            data[at:at] = r.randbytes(span)
        case _ if not data:
            return
        case "flip":
            bit = r.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
        case "edge":
            data[r.randrange(len(data))] = r.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF, r.randrange(256)])
        case "number":
            size = r.choice([2, 4, 8])
            number = struct.pack(">Q", r.choice(_LONG_EDGES if size == 8 else _EDGES))[-size:]
            at = r.randrange(max(1, len(data) - size + 1))
            data[at : at + size] = number[: len(data) - at]
        case "cut":
            del data[at:]
        case "delete":
            del data[at : at + span]
        case "repeat":
            data[at:at] = data[at : at + span] * r.choice([1, 2, 50])
