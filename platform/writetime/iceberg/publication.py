"""Publishes the versions of a Delta table as snapshots of an Iceberg table in the same folder.

A snapshot names the commit of Delta that it mirrors. If a program is killed between both commits, the next publication
makes the snapshot. Until then, Iceberg's readers see the version before. A snapshot is a whole version, so no reader
sees a part of one.

Snapshots leave the metadata before the files that only they name are deleted: Delta's vacuum keeps these for an hour or
longer after a commit has removed them.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
from pyarrow import fs

from writetime.core.errors import reason_of
from writetime.core.extras import WhenUsed
from writetime.delta import commits
from writetime.delta.bucketed_table import ATTEMPTS, BucketedTable
from writetime.delta.deletion_vectors import DeletionVector
from writetime.delta.versions import CommitId, TableVersion
from writetime.iceberg import metadata_files
from writetime.iceberg.catalogs import CatalogEntry
from writetime.iceberg.manifests import DATA, ManifestFormat, decoded_list, decoded_manifest
from writetime.iceberg.registration import PublishedVersion, Registration
from writetime.iceberg.schemas import Reshaped, name_mapping, partition_spec, schema_after
from writetime.iceberg.snapshots import Difference, MadeSnapshot, Manifests, Snapshot, SnapshotWriter, new_id

if TYPE_CHECKING:
    from pyiceberg import schema as schemas
else:
    # Agents import the lake, and are installed without it.
    schemas = WhenUsed("pyiceberg.schema")

_log = logging.getLogger(__name__)

VERSION, COMMIT = "writetime.delta-version", "writetime.delta-commit"
"""In the summary of a snapshot: the number and the digest of the commit of Delta that it mirrors."""
_REPLACED_AT = "writetime.replaced-at"
"""When the snapshot before was no longer the newest version of Delta (milliseconds)."""
_DROPPED = "writetime.dropped"
"""The metadata files of the snapshot before that this one does not name, without their folder."""

MOST_SNAPSHOTS = 128
"""The most snapshots that are kept, because each version of the metadata lists all of them."""
KEPT_SECONDS = 2700
"""How long a snapshot is kept after another one has replaced it. Its files are deleted after an hour or later."""
EARLIER_VERSIONS = 32
"""The number of earlier versions of the metadata that are kept."""
# How the names of metadata end, also of that of a catalog.
_METADATA = ".metadata.json"
_PROPERTIES = {
    # Delta's vacuum deletes the data files, and no program that expires snapshots of Iceberg.
    "gc.enabled": "false",
    # A REST catalog writes a version of its own for each snapshot, and by default it deletes none of them.
    "write.metadata.delete-after-commit.enabled": "true",
}


@dataclass
class _State:
    """A version of the metadata, with the manifests of its newest snapshot, and the vectors that are known."""

    number: int
    metadata: dict[str, Any]
    manifests: Manifests = field(default_factory=Manifests)
    vectors: dict[str, DeletionVector] = field(default_factory=dict)
    mirrored: CommitId | None = None
    fields: pa.Schema | None = None
    is_whole: bool = True
    """False if the metadata, or a manifest of the newest snapshot, is missing or damaged. Then the table begins again.
    """
    last_at: int = 0
    """The time of the last snapshot, if all have gone (milliseconds). Catalogs refuse a next one that is older."""
    _layout: ManifestFormat | None = None

    @property
    def layout(self) -> ManifestFormat:
        """How its next manifests are written."""
        if self._layout is None:
            schema = schemas.Schema.model_validate(self.metadata["schemas"][-1])
            self._layout = ManifestFormat(self.metadata["format-version"], schema, partition_spec(schema))
        return self._layout

    @property
    def snapshots(self) -> list[dict[str, Any]]:
        return self.metadata["snapshots"]


class IcebergTable:
    """The Iceberg table of a Delta table. It keeps its state from one publication to the next, so one thread publishes
    it. Another one may `register` it meanwhile.
    """

    def __init__(self, delta: BucketedTable, as_of: str, entry: CatalogEntry | None = None) -> None:
        """Publish versions of `delta`. `as_of` is the name of the number that a version has for its time
        (microseconds), and `entry` that of the table in a catalog, if it is to be in one.
        """
        self._delta = delta
        self._as_of = as_of
        self._registration = entry and Registration(entry, delta.storage, KEPT_SECONDS)
        self._state: _State | None = None
        self.is_published = True
        """Whether the last call of `publish` did not fail."""

    def publish(self) -> None:
        """Make the newest version of the Delta table the newest snapshot, if it is not, and let old snapshots go. Do
        nothing before the first batch.

        Raises:
            WritetimeError, OSError: a file cannot be read or written.
        """
        self.is_published = False
        for _ in range(ATTEMPTS):
            before = self._load()
            # After the snapshot, so that it is not older than the version that this mirrors.
            version = self._delta.load()
            as_of = version.transaction(self._as_of)
            if as_of is None or self._advance(before, version, as_of):
                self.is_published = True
                return
            # Another program has committed a version of the metadata.
            self._state = None
        raise self._delta.conflict()

    @property
    def is_registered(self) -> bool:
        """Whether the catalog, if there is one, has the newest version of the metadata that was published here."""
        return self._registration is None or self._registration.is_current

    def register(self, *, at_once: bool = True) -> None:
        """Let the catalog, if there is one, have the newest version of the metadata: `Registration.register`."""
        if self._registration:
            self._registration.register(at_once=at_once)

    def registered_name(self) -> str | None:
        """Return the name by which the catalog has the table: `Registration.registered_name`."""
        return self._registration and self._registration.registered_name()

    def unregister(self) -> None:
        """Remove the table from the catalog, if that has it: `Registration.unregister`."""
        if self._registration:
            self._registration.unregister()

    def _offer(self) -> None:
        """Let the newest version be registered."""
        state = self._state
        if self._registration and state and state.is_whole:
            newest = [each["manifest-list"] for each in state.snapshots[-1:]]
            files = {metadata_files.metadata_name(state.number), *map(self._below, [*newest, *state.manifests.paths()])}
            version = PublishedVersion(state.number, state.metadata, files)
            self._registration.offer(version, lambda: self._needed(state))

    def sweep(self, seconds: float) -> list[str]:
        """Delete metadata files that no version names, as after a kill, and that are older than a time (seconds since
        1970); return their paths. The metadata that a REST catalog keeps in the same folder is left to it.
        """
        state = self._load()
        found = self._delta.storage.filesystem().get_file_info(
            fs.FileSelector(metadata_files.FOLDER, allow_not_found=True)
        )
        # A catalog may name others while it does not answer.
        if (state and not state.is_whole) or not self.is_registered:
            return []
        needed = self._needed(state) if state else set()
        own = [info for info in found if info.is_file and metadata_files.is_own(info.base_name)]
        old = [info.path for info in own if info.path not in needed and info.mtime.timestamp() <= seconds]
        metadata_files.delete(self._delta.storage, old)
        return old

    def begin_again(self) -> dict[str, str] | None:
        """Publish the newest version as the only snapshot of a new table, let the catalog have this one instead, and
        delete all other metadata, which has values or names of files that are gone. Return the location and the id of
        the new table, and its name in the catalog, if it is in one; None if there is no table yet.

        Raises:
            WritetimeError, OSError: as `publish` and `register`. Then the other metadata is still there.
        """
        storage = self._delta.storage
        for _ in range(ATTEMPTS):
            # Before the new table, so that it names none of these files.
            found = storage.filesystem().get_file_info(fs.FileSelector(metadata_files.FOLDER, allow_not_found=True))
            if (before := self._load()) is None:
                return None
            # Of another location, whose metadata is not continued, but with the next number.
            self._state = replace(before, metadata=before.metadata | {"location": ""}, mirrored=None)
            self.publish()
            # Another program may have continued the table.
            if self._state.metadata["table-uuid"] != before.metadata.get("table-uuid"):
                return self._replace_others(self._state.metadata, found)
        raise self._delta.conflict()

    def _replace_others(self, begun: Mapping[str, Any], found: Iterable[fs.FileInfo]) -> dict[str, str]:
        """Let the catalog have a table that has begun again, and delete the metadata of the one before, which is among
        some files.
        """
        self.register()
        name = self.registered_name()
        # What a catalog has written for the table that it no longer has is left in the folder.
        gone = [i for i in found if metadata_files.is_own(i.base_name) or (name and i.base_name.endswith(_METADATA))]
        metadata_files.delete(self._delta.storage, [info.path for info in gone if info.is_file])
        described = {"location": begun["location"], "table_uuid": begun["table-uuid"]}
        return described | ({"catalog": name} if name else {})

    def _load(self) -> _State | None:
        """Return the newest version of the metadata, None if there is none."""
        storage = self._delta.storage
        number = metadata_files.newest(storage, self._state.number if self._state else 0)
        if self._state is None or self._state.number != number:
            is_first, self._state = self._state is None, None
            if number:
                self._state = self._read_state(number)
                self._offer()
                if is_first:
                    # A program that was killed has left the hint behind.
                    metadata_files.repair_hint(storage, number)
        return self._state

    def _read_state(self, number: int) -> _State:
        try:
            metadata = metadata_files.read_metadata(self._delta.storage, number)
            return _State(number, metadata, self._read_manifests(metadata), mirrored=_mirrored(metadata))
        except (FileNotFoundError, ValueError) as e:
            what = "%s: version %d of the Iceberg table cannot be read, so the table begins again: %s"
            _log.warning(what, self._delta.storage.address, number, reason_of(e))
            return _State(number, {}, is_whole=False)

    def _read_manifests(self, metadata: dict[str, Any]) -> Manifests:
        if not metadata["snapshots"] or metadata["location"] != metadata_files.location_of(self._delta.storage):
            return Manifests()
        listed = decoded_list(self._read(metadata["snapshots"][-1]["manifest-list"]))
        found = [decoded_manifest(self._read(each["manifest_path"]), each) for each in listed]
        return Manifests(
            [each for each in found if each.listed["content"] == DATA],
            [each for each in found if each.listed["content"] != DATA],
        )

    def _read(self, address: str) -> bytes:
        return metadata_files.read(self._delta.storage, self._below(address))

    def _below(self, address: str) -> str:
        """Return the path of a file below the table's folder."""
        return address[len(metadata_files.location_of(self._delta.storage)) + 1 :]

    def _needed(self, state: _State) -> set[str]:
        """Return the paths of all metadata files that a version names: each snapshot has the files that the next one
        does not name.
        """
        earlier = range(state.number - EARLIER_VERSIONS, state.number + 1)
        named = [*(each["manifest-list"] for each in state.snapshots), *state.manifests.paths()]
        return {
            *map(metadata_files.metadata_name, earlier),
            *map(self._below, named),
            *_dropped_by(state.snapshots[1:]),
        }

    def _advance(self, before: _State | None, version: TableVersion, as_of: int) -> bool:
        """Commit the next version of the metadata, if it differs from the one before; return whether it did not
        conflict.
        """
        if before and before.mirrored == version.commit_id and not _expired(before.snapshots, self._now()):
            return True
        state = self._begun(before, version)
        change = Difference.between(
            state.manifests, state.vectors, metadata_files.location_of(self._delta.storage), version
        )
        is_new = bool(change) or not state.snapshots
        gone = _expired(state.snapshots, self._now()) if not is_new else 0
        if not is_new and not gone and before and state.metadata == before.metadata:
            before.mirrored = version.commit_id
            return True
        written = MadeSnapshot(state.manifests)
        if is_new:
            written = self._snapshot(state, change, version, as_of)
            gone = _expired(state.snapshots, self._now())
        expired = self._expire(state, gone)
        _drop_schemas(state.metadata)
        if before and before.metadata.get("table-uuid") == state.metadata["table-uuid"]:
            _log_version(state.metadata, before)
        state.number += 1
        storage = self._delta.storage
        metadata_files.write(storage, written.files)
        if not metadata_files.commit(storage, state.number, state.metadata):
            metadata_files.delete(storage, written.files)
            return False
        root = metadata_files.location_of(storage)
        vectors = {f"{root}/{path}": file.vector for path, file in version.by_path.items() if file.vector}
        self._state = replace(
            state, manifests=written.manifests, vectors=vectors, mirrored=version.commit_id, fields=version.fields
        )
        self._offer()
        gone = [*expired, metadata_files.metadata_name(state.number - EARLIER_VERSIONS - 1)]
        metadata_files.delete(storage, self._registration.deletable(gone) if self._registration else gone)
        return True

    def _now(self) -> int:
        return commits.millis(self._delta.storage)

    def _is_same_table(self, before: _State, form: int, location: str) -> bool:
        """Return whether the next version of the metadata is of the same table as the one before."""
        metadata = before.metadata
        return before.is_whole and metadata["format-version"] <= form and metadata["location"] == location

    def _goes_on(self, before: _State, version: TableVersion, form: int) -> bool:
        """Return whether the earlier snapshots stay, given the version before of the same table."""
        if before.metadata["format-version"] != form:
            return False
        # The folder may have been restored from an earlier copy.
        return before.mirrored is None or self._delta.has_commit(before.mirrored, version)

    def _begun(self, before: _State | None, version: TableVersion) -> _State:
        """Return a copy of the state with the schema of a version.

        If a field has another form, Delta has lost commits, or a table gets its first vectors, all earlier snapshots
        go: they cannot be read by the new names, or without what was lost. The table stays the same, so a catalog takes
        this as a commit. The metadata of another folder, or with vectors that Delta no longer has, is not continued.
        """
        location, form = metadata_files.location_of(self._delta.storage), 3 if version.has_vectors else 2
        if not before or not self._is_same_table(before, form, location):
            return self._new(before.number if before else 0, form, version)
        state, last = replace(before, metadata=dict(before.metadata)), before.metadata["last-column-id"]
        if self._goes_on(before, version, form):
            if before.fields == version.fields:
                return state
            with suppress(Reshaped):
                schema = schema_after(version.fields, before.layout.schema, last)
                if schema.schema_id == before.layout.schema.schema_id:
                    return state
                _set_schema(state.metadata, schema)
                return replace(state, _layout=None)
        schema = schema_after(version.fields, before.layout.schema, last, reshapes=True)
        metadata = state.metadata
        metadata |= {"snapshots": [], "snapshot-log": [], "refs": {}, "current-snapshot-id": None}
        metadata |= {"format-version": form, **({"next-row-id": metadata.get("next-row-id", 0)} if form > 2 else {})}
        if schema.schema_id != before.layout.schema.schema_id:
            _set_schema(metadata, schema)
        return _State(before.number, metadata, last_at=before.snapshots[-1]["timestamp-ms"] if before.snapshots else 0)

    def _new(self, number: int, form: int, version: TableVersion) -> _State:
        """Return the state of a new table, after a version of another one with a number."""
        location = metadata_files.location_of(self._delta.storage)
        metadata: dict[str, Any] = {
            "format-version": form,
            "table-uuid": str(uuid.uuid4()),
            "location": location,
            "last-sequence-number": 0,
            "last-updated-ms": self._now(),
            "schemas": [],
            "partition-specs": [],
            "default-spec-id": 0,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": _PROPERTIES | {"write.metadata.previous-versions-max": str(EARLIER_VERSIONS)},
            "current-snapshot-id": None,
            "refs": {},
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": [],
            "statistics": [],
            "partition-statistics": [],
            **({"next-row-id": 0} if form > 2 else {}),
        }
        schema = schema_after(version.fields, None)
        spec = partition_spec(schema)
        metadata["partition-specs"] = [orjson.loads(spec.model_dump_json())]
        metadata["last-partition-id"] = spec.last_assigned_field_id
        _set_schema(metadata, schema)
        return _State(number, metadata)

    def _snapshot(self, state: _State, change: Difference, version: TableVersion, as_of: int) -> MadeSnapshot:
        """Add a snapshot to the metadata; return its files and manifests."""
        metadata, parent = state.metadata, state.snapshots[-1] if state.snapshots else None
        snapshot, layout = Snapshot(metadata["last-sequence-number"] + 1, new_id()), state.layout
        row_id = metadata.get("next-row-id", 0)
        writer = SnapshotWriter(self._delta.storage, layout, snapshot, row_id)
        listed = {
            "snapshot-id": str(snapshot.id),
            "parent-snapshot-id": str(parent["snapshot-id"]) if parent else "null",
            "sequence-number": str(snapshot.sequence),
            "format-version": str(layout.version),
            **({"first-row-id": str(row_id)} if layout.version > 2 else {}),
        }
        written = writer.write(state.manifests, change, listed)
        at = max(as_of // 1000, (parent["timestamp-ms"] if parent else state.last_at) + 1)
        described = {
            "snapshot-id": snapshot.id,
            **({"parent-snapshot-id": parent["snapshot-id"]} if parent else {}),
            "sequence-number": snapshot.sequence,
            "timestamp-ms": at,
            "manifest-list": f"{metadata['location']}/{writer.list_path}",
            "summary": self._summary(state, change, written.manifests, version),
            "schema-id": layout.schema.schema_id,
            **({"first-row-id": row_id, "added-rows": written.rows_with_ids} if layout.version > 2 else {}),
        }
        metadata |= {
            "last-sequence-number": snapshot.sequence,
            "last-updated-ms": max(self._now(), at),
            "current-snapshot-id": snapshot.id,
            "refs": {"main": {"snapshot-id": snapshot.id, "type": "branch"}},
            "snapshots": [*state.snapshots, described],
            "snapshot-log": [*metadata["snapshot-log"], {"snapshot-id": snapshot.id, "timestamp-ms": at}],
            **({"next-row-id": row_id + written.rows_with_ids} if layout.version > 2 else {}),
        }
        return written

    def _summary(
        self, state: _State, change: Difference, manifests: Manifests, version: TableVersion
    ) -> dict[str, str]:
        """Return the summary of a snapshot (spec.md, "Optional Snapshot Summary Fields")."""
        dropped = sorted(state.manifests.paths() - manifests.paths())
        files = [e["data_file"] for e in manifests.files().values()]
        vectors = [e["data_file"] for e in manifests.vectors().values()]
        added, removed = list(change.come.values()), [e["data_file"] for e in change.gone.values()]
        marks, unmarks = list(change.marked.values()), [e["data_file"] for e in change.unmarked.values()]
        replaced_at, is_same_data = self._replaced(state.mirrored, version)
        counts = {
            "added-data-files": len(added),
            "added-records": sum(file.rows for file in added),
            "added-files-size": sum(file.size for file in added),
            "deleted-data-files": len(removed),
            "deleted-records": sum(file["record_count"] for file in removed),
            "removed-files-size": sum(file["file_size_in_bytes"] for file in removed),
            "added-delete-files": len(marks),
            "added-dvs": len(marks),
            "added-position-deletes": sum(file.marked for file in marks),
            "removed-delete-files": len(unmarks),
            "removed-dvs": len(unmarks),
            "removed-position-deletes": sum(file["record_count"] for file in unmarks),
            "total-data-files": len(files),
            "total-records": sum(file["record_count"] for file in files),
            "total-files-size": sum(file["file_size_in_bytes"] for file in files),
            "total-delete-files": len(vectors),
            "total-position-deletes": sum(file["record_count"] for file in vectors),
            "total-equality-deletes": 0,
        }
        return {
            "operation": "replace" if is_same_data else _operation(change),
            **{name: str(count) for name, count in counts.items() if count or name.startswith("total-")},
            VERSION: str(version.version),
            COMMIT: str(version.digest),
            _REPLACED_AT: str(replaced_at),
            _DROPPED: ",".join(path.rpartition("/")[2] for path in dropped),
        }

    def _replaced(self, mirrored: CommitId | None, version: TableVersion) -> tuple[int, bool]:
        """Return when the files of the last snapshot, which mirrors a commit of Delta, were replaced (milliseconds; 0
        if it is not known), and whether this version has the same rows, as after packing.
        """
        at = 0
        for number in range(mirrored.version + 1 if mirrored else version.version + 1, version.version + 1):
            commit = commits.read_commit(self._delta.storage, number)
            if commit is None:
                return 0, False
            actions = commits.actions_of(self._delta.storage, number, commit)
            changes = [a[kind].get("dataChange", True) for a in actions for kind in ("add", "remove") if kind in a]
            if changes:
                at = at or next((a["commitInfo"].get("timestamp") or 0 for a in actions if "commitInfo" in a), 0)
            if any(changes):
                return at, False
        return at, bool(at)

    def _expire(self, state: _State, gone: int) -> list[str]:
        """Remove the first snapshots from the metadata; return the paths of the files that only they name."""
        metadata, snapshots = state.metadata, state.snapshots
        if not gone:
            return []
        kept = snapshots[gone:]
        ids = {each["snapshot-id"] for each in kept}
        metadata["snapshots"] = kept
        metadata["snapshot-log"] = [each for each in metadata["snapshot-log"] if each["snapshot-id"] in ids]
        lists = [self._below(each["manifest-list"]) for each in snapshots[:gone]]
        return [*lists, *_dropped_by(snapshots[1 : gone + 1])]


def _dropped_by(snapshots: Iterable[dict[str, Any]]) -> list[str]:
    """Return the paths of the metadata files that some snapshots no longer name."""
    names = [name for each in snapshots for name in each["summary"].get(_DROPPED, "").split(",") if name]
    return [f"{metadata_files.FOLDER}/{name}" for name in names]


def _set_schema(metadata: dict[str, Any], schema: "schemas.Schema") -> None:
    """Make a schema the newest one of the metadata, with its name mapping."""
    metadata |= {
        "schemas": [*metadata["schemas"], orjson.loads(schema.model_dump_json())],
        "current-schema-id": schema.schema_id,
        "last-column-id": max(schema.highest_field_id, metadata.get("last-column-id", 0)),
        "properties": metadata["properties"] | {"schema.name-mapping.default": name_mapping(schema)},
    }


def _drop_schemas(metadata: dict[str, Any]) -> None:
    """Remove the schemas that no snapshot names, except the newest one."""
    named = {metadata["current-schema-id"], *(each["schema-id"] for each in metadata["snapshots"])}
    metadata["schemas"] = [each for each in metadata["schemas"] if each["schema-id"] in named]


def _log_version(metadata: dict[str, Any], before: _State) -> None:
    """Add the version before to the metadata's log of versions, which names those that are kept."""
    name = f"{metadata['location']}/{metadata_files.metadata_name(before.number)}"
    entry = {"metadata-file": name, "timestamp-ms": before.metadata["last-updated-ms"]}
    metadata["metadata-log"] = [*metadata["metadata-log"], entry][-EARLIER_VERSIONS:]


def _mirrored(metadata: dict[str, Any]) -> CommitId | None:
    """Return the commit of Delta that the newest snapshot mirrors."""
    if not metadata["snapshots"]:
        return None
    summary = metadata["snapshots"][-1]["summary"]
    return CommitId(int(summary.get(VERSION, -1)), int(summary.get(COMMIT, 0)))


def _expired(snapshots: Sequence[dict[str, Any]], now: int) -> int:
    """Return how many of the first snapshots are no longer kept at a time (milliseconds)."""
    first = max(len(snapshots) - MOST_SNAPSHOTS, 0)
    while first < len(snapshots) - 1:
        if int(snapshots[first + 1]["summary"].get(_REPLACED_AT, 0)) > now - KEPT_SECONDS * 1000:
            break
        first += 1
    return first


def _operation(change: Difference) -> str:
    """Return the operation of a change of the rows."""
    removes = bool(change.gone or change.marked or change.unmarked)
    if not removes:
        return "append"
    return "overwrite" if change.come else "delete"
