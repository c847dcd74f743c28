"""The next snapshot of an Iceberg table: its files and vectors become those of a version of the Delta table.

A snapshot is made from the difference between both, so it does not matter which commits of Delta it has missed. Only
manifests with files that leave are written again, and small ones are joined, so a snapshot costs what it changes.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from writetime.delta.deletion_vectors import DeletionVector, vector_bytes
from writetime.delta.parquet import PARTITION
from writetime.delta.storage import Storage
from writetime.delta.versions import DataFile, TableVersion
from writetime.iceberg.file_statistics import statistics_of
from writetime.iceberg.manifests import (
    ADDED,
    DATA,
    DELETED,
    DELETES,
    Entry,
    IcebergManifest,
    ManifestFormat,
    encoded_list,
    inherited,
)
from writetime.iceberg.metadata_files import FOLDER, location_of
from writetime.iceberg.puffin import Blob, puffin_file

FULL = 128
"""The most entries in a manifest."""
_SMALL = 8
"""The most manifests of one content with less than half as many entries."""

# The field of a file's path in the bounds of a vector (spec.md, "Reserved Field IDs"). pyiceberg and others find the
# file of a vector by them.
_FILE_PATH = 2147483546


@dataclass(frozen=True)
class Snapshot:
    """The number of a snapshot among all, and its random id."""

    sequence: int
    id: int

    def named(self, rest: str) -> str:
        """Return the path of a file of this snapshot, which no other snapshot has."""
        return f"{FOLDER}/{self.sequence}-{self.id:016x}-{rest}"


@dataclass
class Manifests:
    """The manifests of a snapshot."""

    data: Sequence[IcebergManifest] = ()
    deletes: Sequence[IcebergManifest] = ()

    @property
    def all(self) -> list[IcebergManifest]:
        """All manifests."""
        return [*self.data, *self.deletes]

    def files(self) -> dict[str, Entry]:
        """Return the live data files, by their addresses."""
        return {e["data_file"]["file_path"]: e for manifest in self.data for e in manifest.live}

    def vectors(self) -> dict[str, Entry]:
        """Return the live vectors, by the addresses of their data files."""
        return {e["data_file"]["referenced_data_file"]: e for manifest in self.deletes for e in manifest.live}

    def paths(self) -> set[str]:
        """Return the addresses of the manifests, and of the Puffin files."""
        puffins = {e["data_file"]["file_path"] for manifest in self.deletes for e in manifest.live}
        return {each.listed["manifest_path"] for each in self.all} | puffins


@dataclass
class Difference:
    """What changes from a snapshot to a version of the Delta table."""

    gone: Mapping[str, Entry]
    come: Mapping[str, DataFile]
    unmarked: Mapping[str, Entry]
    marked: Mapping[str, DataFile]

    @classmethod
    def between(
        cls, manifests: Manifests, known: Mapping[str, DeletionVector], root: str, version: TableVersion
    ) -> "Difference":
        """Compare a snapshot with a version. `known` are the vectors of the files that this process has published; of
        others, only the number of rows is known.
        """
        before, vectors = manifests.files(), manifests.vectors()
        now = {f"{root}/{path}": file for path, file in version.by_path.items()}

        def has_same_vector(address: str, file: DataFile | None) -> bool:
            if file is None or file.vector is None:
                return False
            if address in known:
                return known[address] == file.vector
            return vectors[address]["data_file"]["record_count"] == file.marked

        unmarked = {a: e for a, e in vectors.items() if not has_same_vector(a, now.get(a))}
        return cls(
            {address: entry for address, entry in before.items() if address not in now},
            {address: file for address, file in now.items() if address not in before},
            unmarked,
            {a: file for a, file in now.items() if file.vector and (a not in vectors or a in unmarked)},
        )

    def __bool__(self) -> bool:
        return bool(self.gone or self.come or self.unmarked or self.marked)


@dataclass
class MadeSnapshot:
    """The files of a snapshot that are not written yet, by their paths, and its manifests."""

    manifests: Manifests
    files: dict[str, bytes] = field(default_factory=dict)
    rows_with_ids: int = 0


def new_id() -> int:
    """Return a random id of a snapshot."""
    return uuid.uuid4().int >> 65 or 1


class SnapshotWriter:
    """Makes the files of one snapshot."""

    def __init__(self, storage: Storage, layout: ManifestFormat, snapshot: Snapshot, next_row_id: int) -> None:
        self._storage = storage
        self._root = location_of(storage)
        self._format = layout
        self._snapshot = snapshot
        self._first_row_id = self._next_row_id = next_row_id
        self._files: dict[str, bytes] = {}

    def write(self, before: Manifests, change: Difference, metadata: Mapping[str, str]) -> MadeSnapshot:
        """Return the files of the snapshot that a change makes; `metadata` is that of the manifest list."""
        come = [self._data_entry(address, file) for address, file in change.come.items()]
        data = self._next(DATA, before.data, change.gone.keys(), come)
        deletes = self._next(DELETES, before.deletes, change.unmarked.keys(), self._vectors(change.marked))
        manifests = Manifests(data, deletes)
        listed = encoded_list(self._format.version, metadata, manifests.all)
        self._files[self.list_path] = listed
        return MadeSnapshot(manifests, self._files, self._next_row_id - self._first_row_id)

    @property
    def list_path(self) -> str:
        """The path of the manifest list."""
        return self._snapshot.named("list.avro")

    def _data_entry(self, address: str, file: DataFile) -> Entry:
        return _added(
            {
                "content": 0,
                "file_path": address,
                "file_format": "PARQUET",
                "partition": {PARTITION: file.bucket},
                "record_count": file.rows,
                "file_size_in_bytes": file.size,
                **statistics_of(self._storage, file.path, self._format.schema),
            }
        )

    def _vectors(self, marked: Mapping[str, DataFile]) -> list[Entry]:
        """Return the entries of new vectors, which become one Puffin file."""
        if not marked:
            return []
        found = [file.vector for file in marked.values() if file.vector]
        copies = vector_bytes(self._storage, found)
        data, blobs = puffin_file({a: (copies[i], file.marked) for i, (a, file) in enumerate(marked.items())})
        path = self._snapshot.named("vectors.puffin")
        self._files[path] = data
        address = f"{self._root}/{path}"
        return [
            _vector_entry(address, len(data), blob, of, file)
            for blob, (of, file) in zip(blobs, marked.items(), strict=True)
        ]

    def _next(
        self, content: int, before: Sequence[IcebergManifest], gone: Set[str], come: Sequence[Entry]
    ) -> list[IcebergManifest]:
        """Return the manifests of one content, without the entries that are gone and with those that come."""
        touched, kept = _split(before, lambda each: any(_key(content, e) in gone for e in each.live))
        small, large = _split(kept, lambda each: len(each.live) < FULL // 2)
        if len(small) >= _SMALL:
            touched, kept = touched + small, large
        left = [entry for each in touched for entry in each.live]
        entries = [
            *come,
            *(e for e in left if _key(content, e) not in gone),
            *(e | {"status": DELETED, "snapshot_id": self._snapshot.id} for e in left if _key(content, e) in gone),
        ]
        parts = [entries[start : start + FULL] for start in range(0, len(entries), FULL)]
        return [*kept, *(self._manifest(content, part) for part in parts)]

    def _manifest(self, content: int, entries: Sequence[Entry]) -> IcebergManifest:
        path = self._snapshot.named(f"manifest-{len(self._files)}.avro")
        data = self._files[path] = self._format.encoded(content, entries)
        listed = {
            "manifest_path": f"{self._root}/{path}",
            "manifest_length": len(data),
            "partition_spec_id": self._format.spec.spec_id,
            "content": content,
            "sequence_number": self._snapshot.sequence,
            "min_sequence_number": min(
                (s for e in entries if e["status"] != DELETED and (s := e["sequence_number"]) is not None),
                default=self._snapshot.sequence,
            ),
            "added_snapshot_id": self._snapshot.id,
            **_counts(entries),
            "partitions": [_partition_summary(entries)],
            "key_metadata": None,
            "first_row_id": None,
        }
        if self._format.version > 2 and content == DATA:
            listed["first_row_id"] = self._next_row_id
            self._next_row_id += listed["added_rows_count"]
        return IcebergManifest(listed, inherited(entries, listed))


def _split(
    manifests: Iterable[IcebergManifest], condition: Callable[[IcebergManifest], bool]
) -> tuple[list[IcebergManifest], list[IcebergManifest]]:
    """Return the manifests with live files that meet a condition, and the others."""
    found: tuple[list[IcebergManifest], list[IcebergManifest]] = [], []
    for each in manifests:
        if each.live:
            found[not condition(each)].append(each)
    return found


def _key(content: int, entry: Entry) -> str:
    return entry["data_file"]["file_path" if content == DATA else "referenced_data_file"]


def _counts(entries: Iterable[Entry]) -> dict[str, int]:
    files, rows = [0, 0, 0], [0, 0, 0]
    for entry in entries:
        files[entry["status"]] += 1
        rows[entry["status"]] += entry["data_file"]["record_count"]
    names = ("existing", "added", "deleted")
    counts = {f"{name}_files_count": count for name, count in zip(names, files, strict=True)}
    return counts | {f"{name}_rows_count": count for name, count in zip(names, rows, strict=True)}


def _partition_summary(entries: Iterable[Entry]) -> dict[str, Any]:
    buckets = [entry["data_file"]["partition"][PARTITION] for entry in entries]
    return {
        "contains_null": False,
        "contains_nan": None,
        "lower_bound": _int_bytes(min(buckets)),
        "upper_bound": _int_bytes(max(buckets)),
    }


def _int_bytes(value: int) -> bytes:
    """Return an integer as a bound (spec.md, "Binary single-value serialization")."""
    return value.to_bytes(4, "little", signed=True)


def _added(data_file: dict[str, Any]) -> Entry:
    return {
        "status": ADDED,
        "snapshot_id": None,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": data_file,
    }


def _vector_entry(address: str, size: int, blob: Blob, of: str, file: DataFile) -> Entry:
    bound = [{"key": _FILE_PATH, "value": of.encode()}]
    return _added(
        {
            "content": 1,
            "file_path": address,
            "file_format": "PUFFIN",
            "partition": {PARTITION: file.bucket},
            "record_count": file.marked,
            "file_size_in_bytes": size,
            "lower_bounds": bound,
            "upper_bounds": bound,
            "referenced_data_file": of,
            "content_offset": blob.offset,
            "content_size_in_bytes": blob.size,
        }
    )
