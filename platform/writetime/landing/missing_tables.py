"""Finds out why a named table is not in the lake or in Kafka: its name is misspelt, the database does not log its
changes, or they are still on their way.
"""

from collections.abc import Mapping

from pyarrow.fs import FileSelector, FileType

from writetime.clients import kafka
from writetime.clients.database import DRIVER_FAULTS, answers, connect
from writetime.core.config import Settings
from writetime.core.errors import MissingTable, NotInLake, WritetimeError
from writetime.delta.storage import lake_storage
from writetime.lake.followed_tables import are_captured, cdc_statement, read_entries
from writetime.lake.table import names_table
from writetime.landing.topics import captured_tables
from writetime.schema.similar_tables import most_similar


class KnownTables:
    """The tables that have data in the lake or a topic in Kafka, and those of the database if it answers at once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._captured = _tables_of_kafka(settings)
        self._kept = _tables_of_lake(settings) | (self._captured or set())
        self._database = _tables_of_database(settings)

    def is_unknown(self, name: str) -> bool:
        """Return whether the database answers, and neither it nor the platform has the table."""
        return self._database is not None and name not in self._database and name not in self._kept

    def misspelt(self, name: str) -> str | None:
        """Return the message for a name that no table has; None if one has it, and if the database does not answer and
        no other name is similar.
        """
        known = self._kept | (self._database or {}).keys()
        if name in known:
            return None
        if similar := most_similar(name, known):
            return f"no table {name}; did you mean {similar}?"
        return f"no table {name} in the database" if self.is_unknown(name) else None

    def not_captured(self, name: str) -> str | None:
        """Return the message for a table whose changes the database does not log; None for others."""
        if self._database is None or self._database.get(name, True):
            return None
        return (
            f"the database does not log the changes of {name}: {cdc_statement(self._settings, name)}; or bring in a "
            "snapshot with `writetime backfill`"
        )

    def not_landed(self, name: str) -> str | None:
        """Return the message for a table whose changes the database logs, but that the lake does not have; None if one
        of the servers does not answer.
        """
        if self._captured is None or not (self._database or {}).get(name):
            return None
        way = (
            "land those in Kafka with `writetime follow` or `writetime land`"
            if name in self._captured
            else "no agent has published it yet; start `writetime agent`, or bring in a snapshot with `writetime "
            "backfill`"
        )
        return f"the lake has no changes of {name}: {way}"

    def is_certainly_not_captured(self, name: str) -> bool:
        """Return whether neither the database nor Kafka can have changes of a table. If one of them does not answer, or
        the table has an entry, whose snapshots may be brought in at any time, this is not certain.
        """
        if self._captured is None or name in self._captured or self.not_captured(name) is None:
            return False
        return all(entry.name != name for entry in read_entries(self._settings)[0])


def message_of(settings: Settings, error: MissingTable) -> str:
    """Return the message for a missing table, with the cause if it is known."""
    known, table = KnownTables(settings), error.table
    not_landed = known.not_landed(table) if isinstance(error, NotInLake) else None
    return known.misspelt(table) or known.not_captured(table) or not_landed or str(error)


def _tables_of_lake(settings: Settings) -> set[str]:
    try:
        found = lake_storage(settings).filesystem().get_file_info(FileSelector("", allow_not_found=True))
    except (OSError, WritetimeError):
        # The error about the table is shown then.
        return set()
    return {info.base_name for info in found if info.type == FileType.Directory and names_table(info.base_name)}


def _tables_of_kafka(settings: Settings) -> set[str] | None:
    """Return the tables that have a topic; None if no broker answers at once."""
    try:
        return set(captured_tables(settings)) if kafka.answers(settings) else None
    except WritetimeError:
        return None


def _tables_of_database(settings: Settings) -> Mapping[str, bool] | None:
    """Return whether the database logs the changes of each table; None if it does not answer at once."""
    if not answers(settings):
        return None
    try:
        with connect(settings) as session:
            return are_captured(session, settings)
    except (WritetimeError, *DRIVER_FAULTS):
        return None
