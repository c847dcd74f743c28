"""Finds SSTables by their file names and versions, on local disks and in any storage of pyarrow or fsspec."""

import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pyarrow import NativeFile, fs

from writetime.core.errors import Transient, without_passwords
from writetime.core.outages import is_outage
from writetime.storage.file_errors import CorruptFile, MissingFile, StorageError, Unsupported
from writetime.storage.regular_files import open_regular

_INDEXES = {"big": {"Index.db"}, "bti": {"Partitions.db", "Rows.db"}}
# The components that a reader uses. Cassandra and its indexes write others, such as Filter.db and SAI+ba+GroupMeta.db.
# An index that is created or dropped later changes them, and the TOC of a snapshot, which is a hard link.
_READ = {"CRC.db", "CompressionInfo.db", "Data.db", "Digest.crc32", "Scylla.db", "Statistics.db"}.union(
    *_INDEXES.values()
)
# While a node writes SSTables into a folder, Cassandra keeps a log of the transaction there (`LogFile`), and ScyllaDB
# a temporary TOC (`sstable_version_constants::TEMPORARY_TOC_SUFFIX`).
_TRANSACTION = re.compile(r"[a-z]{2}_txn_[a-z_]+_[0-9a-f-]+\.log")
_COPY_AGAIN = (
    "if it is being copied or written, run this again later; otherwise copy the SSTable again, with all of its files"
)
_TEMPORARY_TOC = "TOC.txt.tmp"
_NAME = re.compile(r"(?P<version>[a-z]{2})-(?P<id>[0-9A-Za-z_]+)-(?P<format>big|bti)-(?P<component>[A-Za-z0-9_.+]+)$")


@dataclass(frozen=True)
class Features:
    """The properties of a version of the format that a reader must know."""

    max_compressed_length: bool = False
    metadata_checksum: bool = False
    unsigned_deletion_time: bool = False
    compact_partition_deletion: bool = False
    index: str = "Index.db"


_M = Features()
_N = Features(max_compressed_length=True, metadata_checksum=True)
_O = replace(_N, unsigned_deletion_time=True, compact_partition_deletion=True)
# BigFormat.BigVersion and BtiFormat.BtiVersion of Cassandra; sstables/version.hh of ScyllaDB (md, me, ms, mt).
FEATURES: dict[tuple[str, str], Features] = {
    ("big", "mc"): _M,
    ("big", "md"): _M,
    ("big", "me"): _M,
    ("big", "ms"): replace(_M, index="Partitions.db"),
    ("big", "mt"): replace(_M, index="Partitions.db"),
    ("big", "na"): _N,
    ("big", "nb"): _N,
    ("big", "oa"): _O,
    ("bti", "da"): replace(_O, index="Partitions.db"),
    ("big", "pa"): _O,
    ("bti", "ea"): replace(_O, index="Partitions.db"),
}


@dataclass(frozen=True)
class Location:
    """The components of one SSTable: a folder, and the part of the file names before the component's name."""

    filesystem: fs.FileSystem = field(hash=False)
    folder: str
    version: str
    id: str
    format: str

    @property
    def features(self) -> Features:
        """The features of this version of the format."""
        return FEATURES[self.format, self.version]

    def path(self, component: str) -> str:
        """Return the path of a component such as `Data.db`."""
        return posixpath.join(self.folder, f"{self.version}-{self.id}-{self.format}-{component}")

    def exists(self, component: str) -> bool:
        """Return whether the component exists."""
        return exists(self.filesystem, self.path(component))

    def read(self, component: str) -> bytes:
        """Read a whole component, or raise `MissingFile`."""
        return read_file(self.filesystem, self.path(component))


def read_file(filesystem: fs.FileSystem, path: str) -> bytes:
    """Read a whole file. The errors are those of `open_file`."""
    with open_file(filesystem, path) as file:
        return file.read()


def open_file(filesystem: fs.FileSystem, path: str) -> NativeFile:
    """Open a file for reading at any offset.

    Raises:
        MissingFile: there is none.
        NotRegular: it is on a local disk, and a link, a pipe, a device, a socket or a folder.
    """
    try:
        if not isinstance(filesystem, fs.LocalFileSystem):
            return filesystem.open_input_file(path)
        with open_regular(path) as file:
            # pyarrow opens only paths. This one is that of the file that is open, whatever has its name now.
            return filesystem.open_input_file(f"/dev/fd/{file.fileno()}")
    except FileNotFoundError:
        raise MissingFile(f"{path} does not exist") from None


def without_secrets(address: str) -> str:
    """Return an address without a password, and without options, which may have one. It is safe to store or show."""
    scheme, separator, rest = without_passwords(address).partition("://")
    if not separator:
        return address
    host, slash, path = rest.partition("?")[0].partition("/")
    user, at, host = host.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}{slash}{path}"


def resolve(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path in it.

    pyarrow's own file systems come first (local, `s3://`, `gs://`, `hdfs://`, `abfss://`), then those of fsspec.

    Raises:
        Transient: the store does not answer.
        StorageError: the store cannot be reached for another reason.
    """
    if "://" not in path:
        return fs.LocalFileSystem(), path
    try:
        found = _known_to_pyarrow(path)
    except OSError as e:
        # For S3, this call requests the region at once.
        kind = Transient if is_outage(e) else StorageError
        raise kind(f"{without_secrets(path)} cannot be reached: {e}") from None
    if found:
        return found
    import fsspec

    filesystem, inner = fsspec.core.url_to_fs(path)
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), inner


def _known_to_pyarrow(uri: str) -> tuple[fs.FileSystem, str] | None:
    """Return pyarrow's file system of a URI, and the path in it; None if pyarrow does not know the scheme, or was built
    without it. The text of its error has the whole URI, so no later error may have it as its context.
    """
    with suppress(ValueError, NotImplementedError):
        return fs.FileSystem.from_uri(uri)
    return None


def parse_name(filesystem: fs.FileSystem, path: str) -> tuple[Location, str] | None:
    """Split the path of a component into its SSTable and the component's name; None if it is not a component. Raise
    `Unsupported` if its version of the format is not supported.
    """
    folder, _, name = path.rpartition("/")
    match = _NAME.match(name)
    if match is None:
        return None
    if (match["format"], match["version"]) not in FEATURES:
        known = ", ".join(sorted(version for _, version in FEATURES))
        raise Unsupported(
            f"{path}: SSTable version {match['version']} ({match['format']}) is not supported; {known} are"
        )
    return Location(filesystem, folder, match["version"], match["id"], match["format"]), match["component"]


def exists(filesystem: fs.FileSystem, path: str) -> bool:
    """Return whether there is anything at a path. For pyarrow, a link that leads nowhere does not exist."""
    if isinstance(filesystem, fs.LocalFileSystem):
        return os.path.lexists(path)
    return filesystem.get_file_info(path).type != fs.FileType.NotFound


def entries(filesystem: fs.FileSystem, folder: str) -> list[str]:
    """Return the paths of all entries of a folder, in order. pyarrow leaves out links that lead nowhere."""
    if isinstance(filesystem, fs.LocalFileSystem):
        return sorted(posixpath.join(folder, name) for name in os.listdir(folder))
    return sorted(info.path for info in filesystem.get_file_info(fs.FileSelector(folder)))


def is_needed(component: str) -> bool:
    """Return whether the readers use a component of this name, if an SSTable has it."""
    return component in _READ


def find_sstables(path: str) -> Iterator[Location]:
    """Find the SSTables at a path: that of one component's file, or all in a folder, such as a snapshot or a backup.

    An SSTable that a node is still writing is left out, as by the database: it has no `TOC.txt` yet, and the folder
    shows that a node writes to it. A node that received an SSTable as a whole (`SSTableZeroCopyWriter`) never writes
    its `TOC.txt`. In a snapshot, `manifest.json` lists these SSTables.

    Raises:
        MissingFile: there is nothing at the path. Or an SSTable is not complete: nothing lists it, although no node is
            writing it, or a component is missing that the readers need.
        Unsupported: the version of the format is not supported.
        CorruptFile: a TOC is not a text.
    """
    filesystem, path = resolve(path)
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise MissingFile(f"{path} does not exist")
    if info.type != fs.FileType.Directory:
        named = parse_name(filesystem, path)
        if named is None:
            raise Unsupported(f"{path} is not named like a component of an SSTable (such as nb-1-big-Data.db)")
        yield named[0]
        return
    # Of any type: what is not a file and has the name of a component is refused when it is read, and not left out.
    names = entries(filesystem, path)
    found = [named for name in names if (named := parse_name(filesystem, name)) is not None]
    is_live = any(_TRANSACTION.fullmatch(posixpath.basename(name)) for name in names)
    has_manifest = any(posixpath.basename(name) == "manifest.json" for name in names)
    components: dict[Location, set[str]] = {}
    for location, component in found:
        components.setdefault(location, set()).add(component)
    for location, present in sorted(components.items(), key=lambda item: (len(item[0].id), item[0].id)):
        if "TOC.txt" in present:
            _require_complete(location, present)
            yield location
        elif is_live or _TEMPORARY_TOC in present:
            continue
        elif has_manifest and "Scylla.db" not in present:
            # ScyllaDB writes each TOC.
            _require_received(location, present)
            yield location
        else:
            raise MissingFile(f"{location.path('TOC.txt')} is missing, so the SSTable is not complete: {_COPY_AGAIN}")


def _require_received(location: Location, present: set[str]) -> None:
    # A node writes one of the two: the first if the data is compressed.
    lacking = set() if {"CompressionInfo.db", "CRC.db"} & present else {"CompressionInfo.db"}
    lacking |= ({"Data.db", "Statistics.db"} | _INDEXES[location.format]) - present
    if lacking:
        raise MissingFile(f"{location.path(min(lacking))} is missing, and so is TOC.txt of its SSTable: {_COPY_AGAIN}")


def _require_complete(location: Location, present: set[str]) -> None:
    toc = location.path("TOC.txt")
    try:
        listed = {line.strip() for line in location.read("TOC.txt").decode().splitlines()}
    except UnicodeDecodeError:
        raise CorruptFile(toc, None, "the names of components were expected") from None
    if "Data.db" not in listed:
        raise MissingFile(f"{toc} does not list Data.db, so it is empty or truncated: {_COPY_AGAIN}")
    if missing := sorted((listed & _READ | {"Statistics.db"}) - present):
        raise MissingFile(
            f"{location.path(missing[0])} is missing, and the TOC.txt of its SSTable lists it: {_COPY_AGAIN}"
        )
