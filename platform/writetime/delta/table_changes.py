"""The change that a commit makes to a table: files that leave, files that come, and rows that are marked as removed.

delta-rs writes commits that add and remove files (`create_write_transaction`), but none that name deletion vectors, or
that also change the fields or the protocol (1.6). So the actions of the log are made here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from writetime.core.extras import WhenUsed
from writetime.delta import commits
from writetime.delta.commits import Action
from writetime.delta.deletion_vectors import DeletionVector
from writetime.delta.parquet import PARTITION, WrittenFile
from writetime.delta.storage import Storage
from writetime.delta.versions import VECTORS, VECTORS_FEATURE, DataFile, TableVersion

if TYPE_CHECKING:
    import deltalake
else:
    # Agents import this module, and are installed without deltalake.
    deltalake = WhenUsed("deltalake")

REMEMBER_REMOVED = "delta.deletedFileRetentionDuration"
"""The property for how long checkpoints name files that were removed: a week if a table does not have it."""
FORGET_REMOVED = {REMEMBER_REMOVED: "interval 2 hours"}
"""The property of a table whose checkpoints soon leave out files that were removed. A stream removes thousands per
hour, and each checkpoint has all that it does not leave out. `vacuum` deletes such files by their own age.
"""

# What all tables of writer version 2 have.
_BASIC = frozenset({"appendOnly", "invariants"})


@dataclass(frozen=True)
class TableChange:
    """The effect of a commit.

    Attributes:
        remove: files that leave.
        add: files that come.
        mark: files with their new deletion vectors.
        fields: the fields of the table from now on, without the partition column; None if they stay.
        vectors: whether the table may have deletion vectors from now on; None if this stays, or marks need it. If not,
            the change must remove all files that have one.
        is_new_data: whether readers of a stream of new rows get the rows of the files that come.
    """

    remove: Sequence[DataFile] = ()
    add: Sequence[WrittenFile] = ()
    mark: Sequence[tuple[DataFile, DeletionVector]] = ()
    fields: pa.Schema | None = None
    vectors: bool | None = None
    is_new_data: bool = True

    @property
    def touched(self) -> list[DataFile]:
        """The files that leave or get other vectors."""
        return [*self.remove, *(file for file, _ in self.mark)]

    def files_after(self, files: Mapping[str, DataFile]) -> dict[str, DeletionVector | None]:
        """Return the vectors of the live files after this change to some files, by their paths."""
        removed = {file.path for file in self.remove}
        found = {path: file.vector for path, file in files.items() if path not in removed}
        return found | {file.path: None for file in self.add} | {file.path: vector for file, vector in self.mark}

    def actions(self, storage: Storage, now: TableVersion) -> list[Action]:
        """Return the actions of the log by which the change follows a version."""
        found = _head(now, self)
        for file in self.touched:
            removed = {
                "path": file.log_path or file.path,
                "deletionTimestamp": commits.millis(storage),
                "dataChange": self.is_new_data,
                "extendedFileMetadata": True,
                "partitionValues": {PARTITION: str(file.bucket)},
                "size": file.size,
            }
            found.append({"remove": removed | _named(file.vector)})
        for new in self.add:
            found.append({"add": self._adding(new.path, new, commits.millis(storage), _statistics(new))})
        for file, vector in self.mark:
            # The bounds in the file's footer may be those of a marked row.
            about = {"numRecords": file.rows, "tightBounds": False}
            path = file.log_path or file.path
            found.append({"add": self._adding(path, file, file.added_at // 1000, about) | _named(vector)})
        return found

    def _adding(
        self, path: str, file: DataFile | WrittenFile, modified: int, statistics: Mapping[str, object]
    ) -> Action:
        return {
            "path": path,
            "partitionValues": {PARTITION: str(file.bucket)},
            "size": file.size,
            "modificationTime": modified,
            "dataChange": self.is_new_data,
            "stats": json.dumps(statistics),
        }


def _statistics(file: WrittenFile) -> Mapping[str, object]:
    if file.first_token is None:
        return {"numRecords": file.rows}
    ends = {"minValues": {"token": file.first_token}, "maxValues": {"token": file.last_token}}
    return {"numRecords": file.rows, **ends, "nullCount": {"token": 0}}


def _named(vector: DeletionVector | None) -> Action:
    return {"deletionVector": vector.action} if vector else {}


def _head(now: TableVersion, change: TableChange) -> list[Action]:
    """Return the actions that change the table itself."""
    vectors = now.has_vectors or bool(change.mark) if change.vectors is None else change.vectors
    if vectors == now.has_vectors and change.fields is None:
        return []
    metadata, protocol, properties = now.table.metadata(), now.table.protocol(), dict(now.properties)
    found: list[Action] = []
    if vectors != now.has_vectors:
        properties = {name: value for name, value in properties.items() if name not in FORGET_REMOVED}
        properties |= {VECTORS: str(vectors).lower(), **(FORGET_REMOVED if vectors else {})}
        features = protocol.reader_features or [], protocol.writer_features or []
        found.append({"protocol": _protocol(*features, vectors=vectors)})
    fields = now.table.schema()
    if change.fields is not None:
        fields = deltalake.Schema.from_arrow(pa.schema([(PARTITION, pa.int32()), *change.fields]))
    named = {"name": metadata.name, "description": metadata.description}
    described = {
        "id": metadata.id,
        **{name: value for name, value in named.items() if value is not None},
        "format": {"provider": "parquet", "options": {}},
        "schemaString": fields.to_json(),
        "partitionColumns": metadata.partition_columns,
        "createdTime": metadata.created_time,
        "configuration": properties,
    }
    return [*found, {"metaData": described}]


def _protocol(reader: Sequence[str], writer: Sequence[str], *, vectors: bool) -> Action:
    """Return the protocol of a table with or without vectors. Keep the features that another program has enabled, such
    as its form of checkpoints.
    """
    own = {VECTORS_FEATURE} if vectors else set[str]()
    reads = {*reader} - {VECTORS_FEATURE} | own
    writes = {*writer} - {VECTORS_FEATURE} | own | _BASIC
    if writes == _BASIC:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    readers = {"minReaderVersion": 3, "readerFeatures": sorted(reads)} if reads else {"minReaderVersion": 1}
    return {**readers, "minWriterVersion": 7, "writerFeatures": sorted(writes)}
