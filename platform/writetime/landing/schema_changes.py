"""A table of the lake follows its schemas in the topic of the schemas.

Each is registered with the table's schema (`schema.stored`). A schema that the lake already has is not read. A schema
that cannot be read is skipped, and does not stop any table or other schema.
"""

import logging
from collections.abc import Iterable

from writetime.core.config import Settings
from writetime.core.instants import UUID_EPOCH
from writetime.delta.versions import TableVersion
from writetime.lake.earlier import end_generation
from writetime.lake.evolution import join_schemas
from writetime.lake.history import HISTORY_FROM, raise_history
from writetime.lake.table import LakeTable, create_table, stored_schema
from writetime.lake.views import time_now, time_of_lake
from writetime.schema.stored import from_json, to_json
from writetime.schema.table import TableSchema, is_later
from writetime.wire.change_messages import require_format
from writetime.wire.publishing import SCHEMAS_TOPIC, RegisteredSchema

log = logging.getLogger(__name__)


def _created_at(schema: TableSchema, now: int) -> int:
    """Return when a table was created (microseconds), by its id, which `is_later` has found to have a time."""
    return now if schema.id is None else min(now, (schema.id.time - UUID_EPOCH) // 10)


class LakeSchemas:
    """Lets one table of the lake follow its schemas."""

    def __init__(self, settings: Settings, lake: LakeTable) -> None:
        self._settings = settings
        self._lake = lake
        self._unreadable: set[int] = set()

    def follow(self, schemas: Iterable[RegisteredSchema]) -> TableVersion | None:
        """Follow the schemas; create the table if it does not exist. Return the newest version of its changes, None if
        no schema can be read.

        Raises:
            WritetimeError: the lake cannot follow one, or has another table of this name.
        """
        now = self._lake.changes.find()
        seen = False
        for registered in schemas:
            if now is not None and registered.avro.get("table") == stored_schema(now):
                seen = True
            elif (schema := self._parsed(registered)) is not None:
                seen = True
                now = self._create(schema) if now is None else self._follow(schema, now)
        return now if seen else None

    def _parsed(self, registered: RegisteredSchema) -> TableSchema | None:
        """Return the table's schema as registered. Return None if it belongs to another table, cannot be read, or has
        another format version, and log this once. Messages with such a schema cannot land, and others can.
        """
        try:
            require_format(registered.avro)
            schema = from_json(registered.avro["table"])
        except Exception as e:
            if registered.offset not in self._unreadable:
                self._unreadable.add(registered.offset)
                log.warning(
                    "topic %s, partition 0, offset %d is skipped, as the schema of %s in it cannot be read: %s: %s",
                    *(SCHEMAS_TOPIC, registered.offset, self._lake.name, type(e).__name__, str(e)[:300]),
                )
            return None
        # Two names may become one namespace in Avro.
        return schema if schema.full_name == self._lake.name else None

    def _create(self, schema: TableSchema) -> TableVersion:
        # Data from before the table's capture is not among the changes.
        now = time_now()
        table = create_table(self._settings, schema, {HISTORY_FROM: str(now)})
        # Another process may have created it.
        raise_history(table, time_of_lake(table))
        return table.changes.load()

    def _follow(self, schema: TableSchema, now: TableVersion) -> TableVersion:
        current = self._lake.schema(now)
        if is_later(current, schema):
            return now
        if is_later(schema, current):
            log.info("%s was dropped and created again (id %s): a generation of it begins", self._lake.name, schema.id)
            first = time_of_lake(self._lake)
            self._lake.begin(schema, lambda last: end_generation(self._lake, last, _created_at(schema, first), first))
            return self._lake.changes.load()
        if to_json(join_schemas(current, schema)) == to_json(current):
            return now
        return create_table(self._settings, schema).changes.load()
