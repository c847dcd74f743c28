"""The faults of a file, always with its name."""

from writetime.core.errors import WritetimeError


class StorageError(WritetimeError):
    """A file of the database that cannot be read."""


class CorruptFile(StorageError):
    """A file with invalid bytes. `offset` is the place, in the file's uncompressed data if it has chunks."""

    def __init__(self, file: str, offset: int | None, expected: str) -> None:
        where = "" if offset is None else f", offset {offset}"
        super().__init__(f"{file}{where}: {expected}")
        self.file = file
        self.offset = offset


class TornTail(CorruptFile):
    """A file with an unfinished end, left by a node that crashed or still writes."""


class Unsupported(StorageError):
    """A sound file that uses an unsupported feature; the text names it."""


class Missing(StorageError):
    """A file that does not exist (any more)."""
