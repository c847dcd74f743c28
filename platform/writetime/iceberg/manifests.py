"""Manifests and manifest lists of Iceberg (format/spec.md, "Manifests" and "IcebergManifest Lists").

pyiceberg (0.12) has their Avro schemas. It writes only those of format version 2, without deletion vectors, and in
Python, so fastavro writes them here. All values that a reader inherits are filled in when a manifest is read.
"""

import functools
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fastavro

from writetime.core.errors import reason_of
from writetime.core.extras import WhenUsed

if TYPE_CHECKING:
    from pyiceberg import manifest as models
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.utils import schema_conversion
else:
    # Agents import the lake, and are installed without it.
    models, schema_conversion = WhenUsed("pyiceberg.manifest"), WhenUsed("pyiceberg.utils.schema_conversion")

Entry = dict[str, Any]
"""An entry of a manifest, by the names of the specification."""

EXISTING, ADDED, DELETED = 0, 1, 2
"""The status of an entry."""
DATA, DELETES = 0, 1
"""The content of a manifest, and of a file (deletes are by position)."""


@dataclass(frozen=True)
class IcebergManifest:
    """A manifest: its record in manifest lists, and its entries of live files, with their sequence numbers and row
    ids.
    """

    listed: Mapping[str, Any]
    live: Sequence[Entry]


@dataclass(frozen=True)
class ManifestFormat:
    """How the manifests of a table are written: its format version, schema and partition spec."""

    version: int
    schema: "Schema"
    spec: "PartitionSpec"

    def encoded(self, content: int, entries: Iterable[Entry]) -> bytes:
        """Return the file of a manifest."""
        metadata = {**self._metadata, "content": "deletes" if content == DELETES else "data"}
        return _encoded(self._entry_schema, entries, metadata)

    @functools.cached_property
    def _metadata(self) -> dict[str, str]:
        return {
            "schema": self.schema.model_dump_json(),
            "schema-id": str(self.schema.schema_id),
            "partition-spec": f"[{','.join(field.model_dump_json() for field in self.spec.fields)}]",
            "partition-spec-id": str(self.spec.spec_id),
            "format-version": str(self.version),
        }

    @functools.cached_property
    def _entry_schema(self) -> Any:
        partition = self.spec.partition_type(self.schema)
        data_file = models.data_file_with_partition(partition, _version(self.version))
        return _parsed(models.manifest_entry_schema_with_data_file(_version(self.version), data_file), "manifest_entry")


def _version(version: int) -> Any:
    # pyiceberg takes a literal.
    return version


def encoded_list(version: int, metadata: Mapping[str, str], manifests: Iterable[IcebergManifest]) -> bytes:
    """Return the file of a manifest list of a format version."""
    return _encoded(_list_schema(version), (dict(each.listed) for each in manifests), metadata)


@functools.cache
def _list_schema(version: int) -> Any:
    return _parsed(models.MANIFEST_LIST_FILE_SCHEMAS[version], "manifest_file")


def _parsed(schema: "Schema", name: str) -> Any:
    return fastavro.parse_schema(schema_conversion.AvroSchemaConversion().iceberg_to_avro(schema, name))


def _encoded(schema: Any, records: Iterable[Mapping[str, Any]], metadata: Mapping[str, str]) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, schema, records, metadata=dict(metadata))
    return sink.getvalue()


def decoded_list(data: bytes) -> list[dict[str, Any]]:
    """Return the records of a manifest list.

    Raises:
        ValueError: it is damaged.
    """
    return _decoded(data)


def decoded_manifest(data: bytes, listed: Mapping[str, Any]) -> IcebergManifest:
    """Return a manifest by its file and its record in a manifest list.

    Raises:
        ValueError: it is damaged.
    """
    return IcebergManifest(listed, inherited(_decoded(data), listed))


def _decoded(data: bytes) -> list[dict[str, Any]]:
    try:
        found: Any = fastavro.reader(io.BytesIO(data))
        return list(found)
    except Exception as e:
        # fastavro reports damage by errors of many kinds.
        raise ValueError(f"a manifest is damaged: {reason_of(e)}") from None


def inherited(entries: Iterable[Entry], listed: Mapping[str, Any]) -> list[Entry]:
    """Return the entries of live files with the values that they inherit from their manifest (spec.md, "Sequence Number
    Inheritance" and "First Row ID Inheritance").
    """
    found, row_id = [], listed.get("first_row_id")
    for entry in entries:
        if entry["status"] == DELETED:
            continue
        file = entry["data_file"]
        if row_id is not None and file.get("first_row_id") is None:
            file = file | {"first_row_id": row_id}
            row_id += file["record_count"]
        sequence = entry["sequence_number"]
        found.append(
            {
                "status": EXISTING,
                "snapshot_id": entry["snapshot_id"] or listed["added_snapshot_id"],
                "sequence_number": listed["sequence_number"] if sequence is None else sequence,
                "file_sequence_number": (
                    listed["sequence_number"]
                    if entry["file_sequence_number"] is None
                    else entry["file_sequence_number"]
                ),
                "data_file": file,
            }
        )
    return found
