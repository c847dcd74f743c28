"""Forgets a table, such as a dropped one: `writetime forget KS.TABLE` deletes everything that the platform keeps of it.

This is the data made from its changes: topics, schemas, reports, its folder in the lake, its tables in the Iceberg
catalog, and the records of this machine's agent. The database, snapshots, settings and the subjects of a schema
registry are not changed.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from pyarrow.fs import FileSelector, FileSystem, FileType

from writetime.capture.gap_records import GapRecords, cdc_off_name
from writetime.capture.state_files import lock_folder, read_json, write_json
from writetime.clients.kafka import delete_topics, topic_names
from writetime.core.config import Capture, Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.delta.storage import lake_storage
from writetime.iceberg.publication import IcebergTable
from writetime.lake.table import table_storage, unopened
from writetime.schema.stored import from_json
from writetime.wire.change_messages import namespace_of
from writetime.wire.publishing import SCHEMAS_TOPIC, SchemaTopic, Sender, schema_key
from writetime.wire.topic_names import changes_topic, dead_changes_topic, row_events_topic
from writetime.wire.watermarks import WatermarkTopic, send_report

_METADATA = ".metadata.json"


@dataclass(frozen=True)
class Trace:
    """The description of some data of a table, and the function that deletes it."""

    text: str
    delete: Callable[[], Any]
    may_stay: bool = False
    """Whether the data that comes later can be deleted although this cannot."""


def find_traces(settings: Settings, table: str) -> list[Trace]:
    """Return the data that is kept of a table, in the order of deletion. Data from which other data would be created
    again comes first.

    Raises:
        WritetimeError: the text does not name a table, or Kafka does not answer.
    """
    storage = table_storage(settings, table)
    traces = _agent_traces(settings.capture, table)
    schemas = SchemaTopic(settings)
    schemas.read_on()
    found = [s for s in schemas.of_namespace(namespace_of(table)) if _is_of(s.avro.get("table"), table)]
    there = set(topic_names(settings))
    topics = [
        name for name in (changes_topic(table), dead_changes_topic(table), row_events_topic(table)) if name in there
    ]
    if topics:
        text = f"topics {', '.join(topics)} with their messages"
        traces.append(Trace(text, lambda: delete_topics(settings, topics)))
    if found:
        names = {schema.fingerprint for schema in found}
        registered = schemas.ids_of_namespace(namespace_of(table)).items()
        keys = [schema_key(name, i) for i, of_id in registered for name in of_id if name in names]
        keys += [schema_key(name) for name in names]

        def delete_schemas() -> None:
            sender = Sender(settings, "schemas cannot be deleted")
            for key in keys:
                sender.produce(SCHEMAS_TOPIC, None, key, 0)
            sender.flush()

        traces.append(Trace(f"{pluralize(len(found), 'schema')} in {SCHEMAS_TOPIC}", delete_schemas))
    # Before the folder, so that the catalog names no files that do not exist.
    catalog = _CatalogTables(settings, table)
    traces += catalog.traces()
    lake = lake_storage(settings).filesystem()
    if lake.get_file_info(table).type == FileType.Directory:
        text = f"folder {storage.address} of the lake"
        traces.append(Trace(text, lambda: _delete_folder(lake, table, keeps_metadata=catalog.may_be_left)))
    watermarks = WatermarkTopic(settings)
    watermarks.read()
    if table in watermarks.reports:
        traces.append(Trace("landing's reports of it", lambda: _delete_report(settings, table)))
    return traces


class _CatalogTables:
    """The tables in the Iceberg catalog."""

    def __init__(self, settings: Settings, table: str) -> None:
        self._settings, self._table = settings, table
        self.may_be_left = False
        """Whether the catalog could not be asked to drop them."""

    def traces(self) -> list[Trace]:
        """Return those that the catalog has. If it does not answer, they may be there, so that is a trace, too."""
        if not self._settings.lake.iceberg_catalog:
            return []
        try:
            names = [name for each in self._tables() if (name := each.registered_name())]
        except WritetimeError:
            names = ["all tables of it, as far as there are any,"]
        return [Trace(f"{', '.join(names)} in the Iceberg catalog", self._drop, may_stay=True)] if names else []

    def _drop(self) -> None:
        self.may_be_left = True
        for each in self._tables():
            each.unregister()
        self.may_be_left = False

    def _tables(self) -> Collection[IcebergTable]:
        try:
            return unopened(self._settings, self._table).iceberg.values()
        except ModuleNotFoundError as e:
            # An agent's machine may lack the extra.
            raise WritetimeError(str(e)) from None


def _delete_folder(lake: FileSystem, table: str, *, keeps_metadata: bool) -> None:
    """Delete the folder of a table in the lake, or all of it but the metadata of Iceberg tables: a REST catalog reads
    its own, to find whether a table that it is to drop is this one.
    """
    if not keeps_metadata:
        lake.delete_dir(table)
        return
    found = [info.path for info in lake.get_file_info(FileSelector(table, recursive=True)) if info.is_file]
    for path in found:
        if not path.endswith(_METADATA):
            lake.delete_file(path)


def _agent_traces(capture: Capture, table: str) -> list[Trace]:
    """Return the records of a table in an agent's state folder: schemas, snapshots and times without capture by the
    table's id, the position in the log of a ScyllaDB table by its name.
    """
    folder = capture.state_dir
    ids = [
        path.stem
        for path in sorted((folder / "schemas").glob("*.json"))
        if any(_is_of(version.get("table"), table) for version in (read_json(path) or {}).get("versions", []))
    ]
    logs = read_json(folder / "logs.json") or {}
    if not ids and table not in logs:
        return []

    def delete() -> None:
        lock = lock_folder(folder)
        try:
            for name, keys in (("snapshots.json", ids), ("logs.json", [table])):
                kept = read_json(folder / name)
                if kept is not None:
                    write_json(folder / name, {key: value for key, value in kept.items() if key not in keys})
            for table_id in ids:
                (folder / "schemas" / f"{table_id}.json").unlink(missing_ok=True)
                GapRecords(capture).file(cdc_off_name(table_id)).unlink(missing_ok=True)
        finally:
            os.close(lock)

    return [Trace(f"the agent's records of it in {folder}; the agent must not run meanwhile", delete)]


def _is_of(stored: Any, table: str) -> bool:
    try:
        return from_json(stored).full_name == table
    except Exception:
        # Files of other tables do not matter here.
        return False


def _delete_report(settings: Settings, table: str) -> None:
    sender = Sender(settings, "a report cannot be deleted")
    send_report(sender, table, None)
    sender.flush()
