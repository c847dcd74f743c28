"""Folders of the lake: on the local disk, or in S3, Google Cloud Storage or Azure by the options of the settings.

Parquet files and commits go through the same client (delta-rs's object store), so that there is one set of options.
"""

import functools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError, naming
from writetime.core.extras import require


@dataclass(frozen=True)
class Storage:
    """A folder by its address, with the options to open it (including secrets). It can be sent to a task.

    `above` is the address of the folder above it, at any depth, from which `folder` returned it; empty if there is
    none.
    """

    address: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    above: str = field(default="", repr=False, compare=False)

    def folder(self, name: str) -> "Storage":
        """Return a folder below this one."""
        return Storage(f"{self.address}/{name}", self.options, self.root)

    @property
    def root(self) -> str:
        """The address of the folder that is opened for this one, so that all folders below it share connections."""
        return self.above or self.address

    @property
    def below(self) -> str:
        """The path of this folder below `root`; empty if it is `root`."""
        return self.address[len(self.root) + 1 :]

    @property
    def is_local(self) -> bool:
        """Whether the folder is on a disk of this machine."""
        return "://" not in self.address

    def filesystem(self) -> fs.FileSystem:
        """Return a file system whose paths are relative to this folder."""
        if self.is_local:
            return _local_folder(self.address)
        # Agents import this module, and are installed without deltalake.
        require("deltalake")
        from writetime.delta.object_store import opened

        whole = fs.PyFileSystem(opened(self.root, tuple(self.options.items())))
        return fs.SubTreeFileSystem(self.below, whole) if self.below else whole

    @contextmanager
    def writing(self, path: str) -> Iterator[pa.NativeFile]:
        """Open a file for writing in a `with` block. An error of the disk names it."""
        with naming(f"{self.address}/{path}"), self.filesystem().open_output_stream(path) as stream:
            yield stream

    def sync(self, path: str) -> None:
        """Make a file, or the names in a folder, durable. Object stores answer a request only when they are."""
        if self.is_local:
            opened = os.open(f"{self.address}/{path}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                with naming(f"{self.address}/{path}"):
                    os.fsync(opened)
            finally:
                os.close(opened)


# A small batch asks a hundred times for one.
@functools.lru_cache(256)
def _local_folder(address: str) -> fs.SubTreeFileSystem:
    return fs.SubTreeFileSystem(address, fs.LocalFileSystem())


# delta-rs cannot commit below a folder with a backslash, a control character or an escape such as %25. Its list of a
# table's files escapes the others that are left out here, and Polars (2.1) opens these names as they are. It takes `=`
# for a value of a partition, and so does each engine that reads such folders (`key=value`). Hadoop takes what is before
# a colon for the scheme of an address.
_READABLE = re.compile(r"[A-Za-z0-9!$&'()*+,./;@\[\]^_|~-]*")


def lake_storage(settings: Settings) -> Storage:
    """Return the lake's folder; a relative path is relative to the working folder.

    Raises:
        WritetimeError: engines cannot read the tables below a folder of this name.
    """
    path = settings.lake.path.rstrip("/")
    options = {name: secret.get_secret_value() for name, secret in settings.lake.storage_options.items()}
    # A path with a null character cannot be resolved.
    address = path if "://" in path or "\0" in path else str(Path(path).resolve())
    _require_readable(settings.lake.path, address)
    return Storage(address, options)


def _require_readable(path: str, address: str) -> None:
    # A folder of this machine may have an address, too.
    folder = address.removeprefix("file:///")
    names = folder.partition("://")[2] or folder
    fault = ""
    if unreadable := _READABLE.sub("", names):
        fault = f"the character {unreadable[0]!r}"
    elif "_delta_log" in address.split("/"):
        fault = "the name _delta_log, which only Delta's own folders may have"
    elif path.startswith("~"):
        fault = "~ at its start, which is not replaced by a home folder"
    elif "://" in address and {"", ".", ".."} & set(names.split("/")):
        fault = "an empty name, . or .., which object stores do not resolve"
    if fault:
        raise WritetimeError(
            f"lake.path is {path!r}, so the tables would be below {address!r}, which has {fault}: not all engines can "
            "read tables there. Name another folder, with the letters a to z, digits, and - _ . + only"
        )
