"""Folders that other programs fill, on a local disk or in an object store, by their addresses."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from pyarrow import fs

from writetime.storage.locations import read_file, resolve, without_secrets


@dataclass(frozen=True)
class Folder:
    """A folder. `path` is its path in the file system. `address` is the path or URI that the user gave, which may have
    a password. Messages use `shown`, and `shown_path` for files in the folder.
    """

    address: str
    filesystem: fs.FileSystem = field(hash=False)
    path: str

    @staticmethod
    def at(address: str) -> "Folder":
        """Return the folder at a path or URI, which may not exist.

        Raises:
            Transient, StorageError: the store cannot be reached.
        """
        filesystem, path = resolve(address)
        return Folder(address, filesystem, path.rstrip("/") or path)

    def address_of(self, path: str) -> str:
        """Return the address of a path in the file system. It has the other parts of this address: a host or an
        account, and options such as the endpoint of a store other than Amazon's.
        """
        if "://" not in self.address:
            return path
        scheme, _, rest = self.address.partition("://")
        relative = posixpath.relpath(path, self.path)
        question = query = ""
        # The paths of fsspec are not URIs: nothing in them is escaped.
        if not isinstance(self.filesystem, fs.PyFileSystem):
            rest, question, query = rest.partition("?")
            relative = quote(relative)
        return f"{scheme}://{posixpath.normpath(posixpath.join(rest, relative))}{question}{query}"

    @property
    def shown(self) -> str:
        """Return the address without secrets."""
        return without_secrets(self.address)

    def shown_path(self, path: str) -> str:
        """Return the address of a path in the file system, without secrets."""
        return without_secrets(self.address_of(path))

    def below(self, *names: str) -> "Folder":
        """Return a folder below this one."""
        path = posixpath.join(self.path, *names)
        return Folder(self.address_of(path), self.filesystem, path)

    def listed(self) -> list[fs.FileInfo]:
        """Return the entries of the folder itself, in the order of the names; nothing if it does not exist."""
        found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(found, key=lambda info: info.path)

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""
        return [info.base_name for info in self.listed() if info.type == fs.FileType.Directory]

    def files(self) -> dict[str, fs.FileInfo]:
        """Return the files in it, by their names."""
        return {info.base_name: info for info in self.listed() if info.type == fs.FileType.File}

    def infos(self, names: Sequence[str]) -> dict[str, fs.FileInfo]:
        """Return the files at some relative paths that exist, in one call."""
        found = self.filesystem.get_file_info([posixpath.join(self.path, name) for name in names])
        return {name: info for name, info in zip(names, found, strict=True) if info.type == fs.FileType.File}

    def read(self, name: str) -> bytes:
        """Read the file at a relative path.

        Raises:
            Missing: there is no such file.
        """
        return read_file(self.filesystem, posixpath.join(self.path, name))
