"""The file system of an object store, by delta-rs."""

from typing import Any

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler


class ObjectStore(DeltaStorageHandler):
    """deltalake 1.6 takes only `bytes` to write, and pyarrow hands over buffers of its own."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        """Return a stream that writes a file."""
        return pa.PythonFile(_Bytes(self._handler.open_output_stream(path, metadata)), mode="w")


class _Bytes:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        return self._stream.write(bytes(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
