"""The errors of files. Each names the file."""

from writetime.core.errors import WritetimeError


class StorageError(WritetimeError):
    """A file of the database that cannot be read."""


class CorruptFile(StorageError):
    """A file with invalid bytes. `offset` is their place. In a file with chunks, it counts uncompressed bytes."""

    def __init__(self, file: str, offset: int | None, expected: str) -> None:
        where = "" if offset is None else f", offset {offset}"
        super().__init__(f"{file}{where}: {expected}")
        self.file = file
        self.offset = offset


class TornTail(CorruptFile):
    """A file with an unfinished end, left by a node that crashed or still writes."""


class Unsupported(StorageError):
    """A valid file that uses an unsupported feature. The text names the feature."""


class MissingFile(StorageError):
    """A file that does not exist, or no longer exists."""
