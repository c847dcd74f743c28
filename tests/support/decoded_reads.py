"""Records what is read of decoded files."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from writetime.delta.versions import DataFile
from writetime.files.cache import Cache
from writetime.files.decoded import Decoded


@contextmanager
def decoded_reads(method: str) -> Iterator[list[tuple[DataFile, Any]]]:
    """Record the calls of a method of decoded files: the file of the lake, and the result."""
    found: list[tuple[DataFile, Any]] = []
    files: list[DataFile] = []
    read, original = Cache.read, getattr(Decoded, method)

    def reading(cache: Cache, storage: Any, file: DataFile, read_from: Any) -> Any:
        files.append(file)
        return read(cache, storage, file, read_from)

    def noted(decoded: Decoded, *arguments: Any) -> Any:
        result = original(decoded, *arguments)
        found.append((files[-1], result))
        return result

    with patch.object(Cache, "read", reading), patch.object(Decoded, method, noted):
        yield found
