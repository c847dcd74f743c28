"""A captured table in the lake, read into Arrow."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from writetime.core import config
from writetime.core.config import Settings
from writetime.core.instants import parse_instant
from writetime.erasure.certificate import erase
from writetime.erasure.keys import Key, ranges_of
from writetime.files.key_ranges import TokenRange
from writetime.lake import table as lake
from writetime.lake import views
from writetime.lake.table import LakeTable, view_schema
from writetime.lookup.keys import places_of_keys
from writetime.lookup.matching import keys_table, matching
from writetime.lookup.reading import RowReader
from writetime.restore.into import restore_into
from writetime.restore.to_folder import restore
from writetime.row_events.events import event_schema
from writetime.row_events.stream_files import events_since
from writetime.schema.table import TableSchema
from writetime.undo.applying import apply_plan
from writetime.undo.damage import Interval
from writetime.undo.plan import UndoPlan, make_plan, read_plan


class Table:
    """A captured table. Each method reads the lake as it is when it is called."""

    def __init__(self, table: LakeTable, settings: Settings) -> None:
        self._table = table
        self._settings = settings
        self._reader = RowReader(table)

    @property
    def name(self) -> str:
        """The name as `keyspace.table`."""
        return self._table.name

    @property
    def schema(self) -> TableSchema:
        """The table's schema in CQL's types."""
        return self._table.schema()

    def view(self, as_of: datetime | str | int | None = None) -> pa.Table:
        """Return the rows that the database would return for SELECT *.

        Args:
            as_of: a time: a datetime, ISO 8601 (UTC unless they name a zone) or microseconds since 1970. The rows are
                then those of all writes with a write time up to it. Defaults to now.

        Raises:
            WritetimeError: the lake no longer has the changes up to this time.
        """
        parts = list(views.virtual(self._table, _micros(as_of)))
        return pa.concat_tables([view_schema(self.schema).empty_table(), *parts])

    def lookup(self, keys: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return the rows that have one of some keys.

        If the keys have all columns of the partition key, only these partitions are read. If they also have clustering
        columns, only the matching rows are read. Otherwise all rows are read.

        Args:
            keys: values by column, such as `[{"id": 7}, {"id": 9}]`. All name the same columns. A value may have the
                form that it has in `view().to_pylist()`. A UUID or an address may also be a Python object or a text, a
                decimal or varint a number, and a collection or tuple a Python one.

        Raises:
            WritetimeError: a key names a column that the table does not have, or other columns than the first key; or a
                value is invalid for its column.
        """
        schema = self._reader.schema
        if not keys:
            return view_schema(schema).empty_table()
        wanted = keys_table(keys, schema)
        places = places_of_keys(wanted, schema)
        rows = self.view() if places is None else self._reader.at(places).values
        return rows.take(matching(rows, wanted, schema))

    def between(self, first_token: int, last_token: int) -> pa.Table:
        """Return the rows of the partitions with tokens from a first one to a last one, and read only these."""
        found = [rows.values for rows in self._reader.between(TokenRange(first_token, last_token))]
        return pa.concat_tables([view_schema(self._reader.schema).empty_table(), *found])

    def row_events(self, since: int = 1) -> pa.Table:
        """Return the row events from a batch (`sequence`) on, in order: kind, and the row before and after.

        Raises:
            WritetimeError: the table has no row events yet.
        """
        schema = event_schema(self.schema)
        return pa.concat_tables([schema.empty_table(), *events_since(self._table, since)])

    def restore(
        self, folder: str, as_of: datetime | str | int | None = None, into: str | None = None, *, merge: bool = False
    ) -> bool:
        """Write the table as SSTables, and import them into a table of the database; see docs/restore.md.

        Args:
            folder: where to: a path or URL of a new folder, or of a run that did not end.
            as_of: as in `view`.
            into: `keyspace.table`. It is created if it is missing. Without it, nothing is imported.
            merge: whether this table may have rows.

        Returns:
            Whether the SSTables are complete; with `into`, whether all nodes have imported theirs, and the rows are
            those of the lake. If not, import on the nodes of other machines, and call this again.

        Raises:
            WritetimeError: the lake cannot show the time, the folder has other files, or the table cannot be imported
                into.
        """
        if into is None:
            restore(self._table, folder, _micros(as_of))
            return True
        report = restore_into(self._settings, self._table, folder, into, _micros(as_of), merge=merge)
        return report.comparison is not None and report.comparison.proven

    def plan_undo(
        self,
        first: datetime | str | int,
        last: datetime | str | int,
        *,
        where: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> UndoPlan:
        """Plan to undo the writes after a first time and up to a last one; see docs/undo.md.

        Args:
            first: the time before the damage, as in `view`.
            last: the time of the last damaging write.
            where: a condition in SQL: only rows that meet it, as they were or as they are.
            columns: only these columns.

        Raises:
            WritetimeError: the lake cannot show the first time, or does not have all writes up to the last one; the
                table has counters; or the condition or a column is wrong.
        """
        interval = Interval(_instant(first), _instant(last))
        return make_plan(self._table, interval, where=where, columns=columns)

    def apply_undo(self, plan_id: str, rows_per_second: int | None = None) -> int:
        """Apply a plan to the database; return the number of rows that this call wrote. A cell that was written after
        the plan was made is left alone.

        Raises:
            WritetimeError: there is no such plan, or the table was truncated or created again since.
        """
        return apply_plan(self._settings, self._table, read_plan(self._table, plan_id), rows_per_second)

    def erase(self, keys: Sequence[Key], *, kafka: bool = True, delete_records: bool = False) -> dict[str, Any]:
        """Erase partitions or rows that the database has deleted; see docs/erase.md. Return the certificate.

        Args:
            keys: values by column, such as `[{"id": 7}]`: all of the partition key, and for single rows the first
                clustering columns. Or the texts that the command takes.
            kafka: whether the table may have topics.
            delete_records: whether to delete all messages of the topics that have landed or were published.

        Raises:
            WritetimeError: a key is wrong, or what it stands for is still live. Nothing was done. A `Transient` may
                pass: call this again.
        """
        ranges = ranges_of(keys, self.schema)
        return erase(self._settings, self._table, ranges, kafka=kafka, delete_records=delete_records)


def _micros(instant: datetime | str | int | None) -> int | None:
    return None if instant is None else _instant(instant)


def _instant(instant: datetime | str | int) -> int:
    text = instant.isoformat() if isinstance(instant, datetime) else instant
    return parse_instant(text) if isinstance(text, str) else text


def open_table(name: str, settings: Settings | None = None) -> Table:
    """Return a captured table of the lake.

    Args:
        name: `keyspace.table`.
        settings: of the installation. Defaults to `writetime.toml` in the working folder and the environment.

    Raises:
        WritetimeError: the lake has no such table.
    """
    settings = config.load() if settings is None else settings
    return Table(lake.open_table(settings, name), settings)
