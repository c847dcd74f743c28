"""A table of a node that is replicated to another cluster."""

from contextlib import suppress
from dataclasses import replace

from cassandra import InvalidRequest

from tests.support.format_server import FormatServer
from tests.support.generate import KEYSPACE
from tests.support.history import add_snapshot
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.lake.horizon import raise_complete_snapshot
from writetime.lake.table import LakeTable, create_table
from writetime.lake.views import time_now
from writetime.replication.replicating import replicator
from writetime.replication.target_table import is_list
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema


class Replicated:
    """A table of the source, in the lake and in the target."""

    def __init__(self, source: FormatServer, settings: Settings, cluster: str = "target") -> None:
        self.settings, self._source, self._cluster = settings, source, cluster
        self._captures = 0
        self._known: set[str] = set()
        self.lake: LakeTable

    def create(self, name: str, statement: str) -> TableSchema:
        """Create the table in the source, and in the lake."""
        self._source.write_one(statement)
        schema = read_schema(self._source.session(), f"{KEYSPACE}.{name}")
        self.lake = create_table(self.settings, schema)
        # The first files of each table have the same names.
        self._known.clear()
        return schema

    def write(self, statements: list[str]) -> None:
        """Write to the source, which refuses some statements, such as an empty range."""
        for statement in statements:
            with suppress(InvalidRequest):
                self._source.write_one(statement)

    def capture(self) -> None:
        """Bring all writes since the last time into the lake."""
        taken_at = time_now()
        self._captures += 1
        name = self.lake.name
        self.lake.follow(read_schema(self._source.session(), name))
        add_snapshot(
            self.lake, take_snapshot(self.settings, name, f"taken{self._captures}"), self._captures, self._known
        )
        raise_complete_snapshot(self.lake, taken_at)

    def replicate(self, *, again: bool = False) -> int:
        """Replicate as a program that was just started."""
        with replicator(self.settings, self.lake, self._cluster) as opened:
            return opened.replicate(self.lake, again=again)


def without_lists(schema: TableSchema) -> TableSchema:
    """Return a table without the lists that cannot be replicated."""

    static, regular = (
        tuple(column for column in columns if not is_list(column)) for columns in (schema.static, schema.regular)
    )
    return replace(schema, static=static, regular=regular)
