"""Folders that other programs fill, on a local disk or in an object store, by their addresses."""

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from pyarrow import fs

from writetime.storage.locations import read_file, resolve, without_secrets

# A pipe or a device is of an unknown type. It is listed, so that reading it is refused by name.
_FILES = (fs.FileType.File, fs.FileType.Unknown)


class Seen:
    """The answers of stores, for a program that looks at the same folders again and again.

    In one look, each folder is listed once. A file that was found is not requested again, also in later looks: the
    folders have files that are written once, such as a manifest as the last file of a backup. The object is for one
    thread.
    """

    def __init__(self) -> None:
        # The answers of this look, by the kind of the request and the address.
        self._answers: dict[tuple[str, str], list[fs.FileInfo]] = {}
        # The files by the folders that they were requested of, and those that do not exist in this look.
        self._files: dict[str, dict[str, fs.FileInfo]] = {}
        self._missing: set[tuple[str, str]] = set()
        # The listings of folders that get no more files, and those of them that this look used.
        self._final: dict[str, list[fs.FileInfo]] = {}
        self._used: set[str] = set()

    def look_again(self) -> None:
        """Begin another look."""
        self._answers.clear()
        self._missing.clear()
        self._final = {folder: self._final[folder] for folder in self._used & self._final.keys()}
        self._used.clear()

    def once(self, kind: str, folder: str, ask: Callable[[], list[fs.FileInfo]]) -> list[fs.FileInfo]:
        """Return the answer to a request about a folder by its address; `ask` sends it."""
        if (kind, folder) not in self._answers:
            self._answers[kind, folder] = ask()
        return self._answers[kind, folder]

    def final(
        self, folder: str, ask: Callable[[], list[fs.FileInfo]], is_final: Callable[[list[fs.FileInfo]], bool]
    ) -> list[fs.FileInfo]:
        """Return the entries of a folder. Once they are final, later looks do not request them again, unless a look did
        without them: the folder may be another one then.
        """
        self._used.add(folder)
        if folder in self._final:
            return self._final[folder]
        entries = self.once("entries", folder, ask)
        if is_final(entries):
            self._final[folder] = entries
        return entries

    def files(
        self, folder: str, names: Sequence[str], ask: Callable[[Sequence[str]], dict[str, fs.FileInfo]]
    ) -> dict[str, fs.FileInfo]:
        """Return the files with these names that exist; `ask` requests some. Other files of the folder are forgotten,
        so a file that is deleted, and written again later, is requested again.
        """
        known = self._files.get(folder, {})
        new = [name for name in names if name not in known and (folder, name) not in self._missing]
        found = {name: known[name] for name in names if name in known} | (ask(new) if new else {})
        self._missing.update((folder, name) for name in new if name not in found)
        self._files[folder] = found
        return found


@dataclass(frozen=True)
class Folder:
    """A folder. `path` is its path in the file system. `address` is the path or URI that the user gave, which may have
    a password. Messages use `shown`, and `shown_path` for files in the folder. `seen` has answers of the store for this
    folder and those below it.
    """

    address: str
    filesystem: fs.FileSystem = field(hash=False)
    path: str
    seen: Seen | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def at(address: str, seen: Seen | None = None) -> "Folder":
        """Return the folder at a path or URI, which may not exist. The errors are those of `locations.resolve`."""
        filesystem, path = resolve(address)
        return Folder(address, filesystem, path.rstrip("/") or path, seen)

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

    def of(self, path: str) -> "Folder":
        """Return the folder at a path in the file system."""
        return Folder(self.address_of(path), self.filesystem, path, self.seen)

    def below(self, *names: str) -> "Folder":
        """Return a folder below this one."""
        return self.of(posixpath.join(self.path, *names))

    @property
    def exists(self) -> bool:
        """Whether there is a folder."""
        [info] = self.seen.once("itself", self.address, self._itself) if self.seen else self._itself()
        return info.type == fs.FileType.Directory

    def _itself(self) -> list[fs.FileInfo]:
        return [self.filesystem.get_file_info(self.path)]

    def listed(self, is_final: Callable[[list[fs.FileInfo]], bool] | None = None) -> list[fs.FileInfo]:
        """Return the entries of the folder itself, in the order of the names; nothing if it does not exist. `is_final`
        returns whether the folder gets no more entries.
        """
        if self.seen and is_final:
            return self.seen.final(self.address, self._list, is_final)
        return self.seen.once("entries", self.address, self._list) if self.seen else self._list()

    def _list(self) -> list[fs.FileInfo]:
        found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(found, key=lambda info: info.path)

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""
        return [info.base_name for info in self.listed() if info.type == fs.FileType.Directory]

    def files(self) -> dict[str, fs.FileInfo]:
        """Return the files in it, by their names."""
        return {info.base_name: info for info in self.listed() if info.type in _FILES}

    def infos(self, names: Sequence[str]) -> dict[str, fs.FileInfo]:
        """Return the files at some relative paths that exist, in one call."""
        return self.seen.files(self.address, names, self._infos) if self.seen else self._infos(names)

    def _infos(self, names: Sequence[str]) -> dict[str, fs.FileInfo]:
        found = self.filesystem.get_file_info([posixpath.join(self.path, name) for name in names])
        return {name: info for name, info in zip(names, found, strict=True) if info.type in _FILES}

    def read(self, name: str) -> bytes:
        """Read the file at a relative path, or raise `MissingFile`."""
        return read_file(self.filesystem, posixpath.join(self.path, name))
