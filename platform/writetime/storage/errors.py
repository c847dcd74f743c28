"""What can be wrong with a file, always with its name."""

from writetime.core.errors import WritetimeError


class StorageError(WritetimeError):
    """A file of the database that cannot be read."""


class CorruptFile(StorageError):
    """A file whose bytes are not what was written. `offset` is where, in the file's uncompressed data if it has
    chunks."""

    def __init__(self, file: str, offset: int | None, expected: str) -> None:
        where = "" if offset is None else f", offset {offset}"
        super().__init__(f"{file}{where}: {expected}")
        self.file = file
        self.offset = offset


class TornTail(CorruptFile):
    """A file that ends in what was not finished, as a node that crashed, or still writes, leaves it."""


class Unsupported(StorageError):
    """A sound file that uses what is not supported; the text names it."""


class Missing(StorageError):
    """A file that is not there (any more)."""
