"""A real node: statements and rows at chosen seconds, the new part of its commit log, and its snapshots."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
from cassandra import InvalidRequest
from cassandra.cluster import Cluster
from cassandra.query import SimpleStatement

from tests.support.answers import decoded
from tests.support.chosen_seconds import ProtocolAt, rows_at
from writetime.clients.node_snapshots import listed, local_node
from writetime.runtime.nodetool import nodetool
from writetime.schema.system import read_schemas
from writetime.schema.table import TableSchema
from writetime.schema.types import quote_name
from writetime.storage.commitlog import CommitLogReader, SegmentReport
from writetime.storage.segment import find_segments, trusted

_IN_FLIGHT = 64


class Node(AbstractContextManager["Node"]):
    """The node of this machine that answers at a port. The present content of its commit log is skipped."""

    def __init__(self, port: int) -> None:
        self._cluster = Cluster(
            ["127.0.0.1"],
            port=port,
            protocol_version=5,
            connect_timeout=60,
            control_connection_timeout=60,
            schema_metadata_enabled=False,
            token_metadata_enabled=False,
        )
        self._plain = self._cluster.connect()
        self._at = self._cluster.connect()
        self._at.client_protocol_handler = ProtocolAt
        self._plain.default_timeout = self._at.default_timeout = 120
        settings, self._jmx_port = local_node(self._plain)
        self._data = [Path(folder) for folder in listed(settings["data_file_directories"])]
        self._cdc_raw = str(settings["cdc_raw_directory"])
        self._read_to: dict[int, int] = {}
        if Path(self._cdc_raw).is_dir():
            self._read_to = {s.id: until for s, until in trusted(find_segments(self._cdc_raw)) if until is not None}

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()

    def execute(self, statement: str) -> None:
        """Execute a statement, such as one that changes the schema."""
        self._plain.execute(statement)

    def schemas(self, keyspace: str) -> dict[str, TableSchema]:
        """Return the tables of a keyspace by name."""
        found = read_schemas(self._plain, [keyspace]).values()
        return {s.name: s for s in found if isinstance(s, TableSchema)}

    def write(self, statements: Iterable[tuple[str, int, int]]) -> list[str]:
        """Execute statements, each at a second and with a default write time; return those that are not valid CQL."""
        refused = []
        waiting: list[tuple[str, Any]] = []

        def wait() -> None:
            statement, future = waiting.pop(0)
            try:
                future.result()
            except InvalidRequest as e:
                # The generator does not know that a range must not be empty, nor a key.
                if "DELETE" not in statement and "BATCH" not in statement and "Key may not be empty" not in str(e):
                    raise AssertionError(f"{statement}: {e}") from e
                refused.append(statement)

        for statement, second, timestamp in statements:
            payload: Any = {"second": second, "timestamp": timestamp}
            waiting.append((statement, self._at.execute_async(SimpleStatement(statement), custom_payload=payload)))
            if len(waiting) == _IN_FLIGHT:
                wait()
        while waiting:
            wait()
        return refused

    def rows(self, schema: TableSchema, second: int) -> pa.Table:
        """Return the rows of `SELECT *` as of a second."""
        names = ", ".join(quote_name(c.name) for c in schema.columns)
        found = rows_at(self._at, f"SELECT {names} FROM {schema.full_name}", second)
        return decoded([list(row) for row in found], schema)

    def log(self, schemas: Sequence[TableSchema]) -> dict[str, list[pa.RecordBatch]]:
        """Read the changes to these tables that the commit log has since the last time, by table name."""
        found: dict[str, list[pa.RecordBatch]] = {}
        # No statement here writes to another table too.
        reader = CommitLogReader(schemas, on_unknown_table="skip")
        for segment, until in trusted(find_segments(self._cdc_raw)):
            start = self._read_to.get(segment.id, 0)
            if until is None or until <= start:
                continue
            report = SegmentReport()
            for schema, batch in reader.read(segment, start=start, until=until, report=report):
                found.setdefault(schema.name, []).append(batch)
            self._read_to[segment.id] = report.position
        return found

    def nodetool(self, *arguments: str) -> None:
        """Run a command of Cassandra's `nodetool`."""
        nodetool(self._jmx_port, *arguments)

    def snapshot(self, schema: TableSchema, tag: str) -> Path:
        """Return the folder of a snapshot that was taken."""
        assert schema.id is not None
        inner = Path(schema.keyspace) / f"{schema.name}-{schema.id.hex}" / "snapshots" / tag
        return next(folder / inner for folder in self._data if (folder / inner).is_dir())
