"""Deletion vectors: the rows of a file of a Delta table that no longer count, by their index in the file.

The format is that of Delta's protocol (PROTOCOL.md, "Deletion Vectors" and "Deletion Vector Format"): Roaring bitmaps
in their portable form, each under a key for the upper bits, which are 0 here, as no file has 2^32 rows. The vectors of
a commit are in one file.

delta-rs (1.6) reads the marked rows of a table (`DeltaTable.deletion_vectors`), but neither writes vectors, nor returns
where they are, which an action that removes a file must name.
"""

import base64
import struct
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, plain_text
from writetime.core.extras import WhenUsed
from writetime.core.outages import kind_of
from writetime.delta.storage import Storage

if TYPE_CHECKING:
    import pyroaring
else:
    # Agents import the lake, and are installed without it.
    pyroaring = WhenUsed("pyroaring")

_MAGIC = 1681511377
_VERSION = b"\1"
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct("<iqI")
# Delta encodes ids by Z85, which has the same digits as Python's base 85 in another order.
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)
_ID_LENGTH = 20
_KEPT = 256


@dataclass(frozen=True)
class DeletionVector:
    """The place of a deletion vector. `kind` is `u` for a file of the table, `i` if `place` is the vector itself."""

    kind: str
    place: str
    offset: int
    size: int
    count: int

    @classmethod
    def of_action(cls, action: Mapping[str, Any] | None) -> "DeletionVector | None":
        """Return the vector that an action of the log names, if any."""
        if action is None:
            return None
        names = ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")
        kind, place, offset, size, count = (action.get(name) for name in names)
        return cls(str(kind), str(place), offset or 0, size or 0, count or 0)

    @property
    def action(self) -> dict[str, Any]:
        """The part of an action of the log that names the vector."""
        offset = {"offset": self.offset} if self.kind == "u" else {}
        named = {"storageType": self.kind, "pathOrInlineDv": self.place}
        return named | offset | {"sizeInBytes": self.size, "cardinality": self.count}

    @property
    def path(self) -> str | None:
        """The file that has the vector, if it is one of the table."""
        if self.kind != "u":
            return None
        folder, name = self.place[:-_ID_LENGTH], self.place[-_ID_LENGTH:]
        unique = uuid.UUID(bytes=base64.b85decode(name.encode().translate(_FROM_Z85)))
        return f"{folder}/{_name(unique)}" if folder else _name(unique)


# The vectors that a process used last, by the addresses of their tables, because each batch adds to those of the
# previous batch.
_kept: "OrderedDict[tuple[str, DeletionVector], pyroaring.BitMap]" = OrderedDict()


def _keep(storage: Storage, vector: DeletionVector, rows: "pyroaring.BitMap") -> None:
    _kept[storage.address, vector] = rows
    if len(_kept) > _KEPT:
        _kept.popitem(last=False)


def read_vector(storage: Storage, vector: DeletionVector | None) -> "pyroaring.BitMap":
    """Return the rows that no longer count; none if there is no vector. Do not change the result.

    Raises:
        WritetimeError: the vector cannot be read.
    """
    if vector is None:
        return pyroaring.BitMap()
    if (found := _kept.get((storage.address, vector))) is not None:
        return found
    try:
        rows = _decoded(_data(storage, vector))
    except (struct.error, ValueError, OSError) as e:
        raise _unreadable(storage, vector, e) from e
    if len(rows) != vector.count:
        raise WritetimeError(
            f"{storage.address}: the deletion vector {vector.place} has {pluralize(len(rows), 'row')}, and not "
            f"{vector.count}"
        )
    _keep(storage, vector, rows)
    return rows


def vector_bytes(storage: Storage, vectors: Sequence[DeletionVector]) -> list[bytes]:
    """Return each vector as a file has it: its length, its data, and its checksum. A file is read once.

    Raises:
        WritetimeError: a vector cannot be read.
    """
    files: dict[str, bytes] = {}
    found = []
    for vector in vectors:
        try:
            path = vector.path
            if path and path not in files:
                with storage.filesystem().open_input_stream(path) as stream:
                    files[path] = stream.read()
            if path:
                found.append(_checked(files[path][vector.offset :][: vector.size + 2 * _LENGTH.size], vector))
            else:
                data = _data(storage, vector)
                found.append(_LENGTH.pack(len(data)) + data + _LENGTH.pack(zlib.crc32(data)))
        except (ValueError, OSError) as e:
            raise _unreadable(storage, vector, e) from e
    return found


def _unreadable(storage: Storage, vector: DeletionVector, fault: Exception) -> WritetimeError:
    what = f"{storage.address}: the deletion vector {vector.place} cannot be read: {plain_text(fault)}"
    return kind_of(fault)(what)


def write_vectors(storage: Storage, rows: "Mapping[str, pyroaring.BitMap]") -> dict[str, DeletionVector]:
    """Write the vectors of several files as one file; return each by the path of its file."""
    if not rows:
        return {}
    unique = uuid.uuid4()
    place = base64.b85encode(unique.bytes).translate(_TO_Z85).decode()
    parts, offset, written = [_VERSION], len(_VERSION), {}
    for path, marked in rows.items():
        data = _HEAD.pack(_MAGIC, 1, 0) + marked.serialize()
        parts += [_LENGTH.pack(len(data)), data, _LENGTH.pack(zlib.crc32(data))]
        written[path] = DeletionVector("u", place, offset, len(data), len(marked))
        offset += len(data) + 2 * _LENGTH.size
    with storage.writing(_name(unique)) as sink:
        sink.write(b"".join(parts))
    storage.sync(_name(unique))
    for path, vector in written.items():
        _keep(storage, vector, rows[path])
    return written


def _name(unique: uuid.UUID) -> str:
    return f"deletion_vector_{unique}.bin"


def _data(storage: Storage, vector: DeletionVector) -> bytes:
    if vector.kind == "i":
        return base64.b85decode(vector.place.encode().translate(_FROM_Z85))[: vector.size]
    if (path := vector.path) is None:
        raise ValueError(f"its storage type is {vector.kind!r}")
    with storage.filesystem().open_input_file(path) as file:
        found = file.read_at(vector.size + 2 * _LENGTH.size, vector.offset)
    return _checked(found, vector)[_LENGTH.size : -_LENGTH.size]


def _checked(found: bytes, vector: DeletionVector) -> bytes:
    """Return a vector with its length and its checksum, as a file has it."""
    data = found[_LENGTH.size : -_LENGTH.size]
    if found != _LENGTH.pack(vector.size) + data + _LENGTH.pack(zlib.crc32(data)):
        raise ValueError("its length or its checksum differs")
    return found


def _decoded(data: bytes) -> "pyroaring.BitMap":
    magic, count = struct.unpack_from("<iq", data)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic}")
    if not count:
        return pyroaring.BitMap()
    _, count, key = _HEAD.unpack_from(data)
    if (count, key) != (1, 0):
        raise ValueError("it has rows beyond 2^32")
    return pyroaring.BitMap.deserialize(data[_HEAD.size :])
