"""The file system of an object store, by delta-rs."""

import functools
from typing import Any

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs


class ObjectStore(DeltaStorageHandler):
    """A file system that writes pyarrow's buffers. deltalake 1.6 itself writes only `bytes`."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        """Return a stream that writes a file."""
        return pa.PythonFile(_Bytes(self._handler.open_output_stream(path, metadata)), mode="w")

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """Return the files below a folder. Tools such as Hadoop and pyarrow may have made an empty object with the name
        of the folder itself.
        """
        itself = selector.base_dir.strip("/")
        return [info for info in super().get_file_info_selector(selector) if info.path.strip("/") != itself]


# The result is cached, because opening a store costs more than a request. A store renews its credentials when they
# expire. A fork of a process that has used delta-rs cannot use delta-rs at all.
@functools.lru_cache(64)
def opened(address: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    """Open the folder at an address, once per process, with options under the names of delta-rs."""
    return ObjectStore(address, dict(options))


class _Bytes:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        return self._stream.write(bytes(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
