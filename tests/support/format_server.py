"""Real servers that write the files of these tests, one for each storage format."""

import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cassandra.cluster import Cluster

from tests.support import oracle
from tests.support.servers import START_SECONDS, flushes_schemas
from writetime.core.config import load
from writetime.runtime.nodetool import nodetool
from writetime.schema.system import read_schemas
from writetime.schema.table import TableSchema
from writetime.schema.types import quote_name
from writetime.servers.cassandra import CassandraServer
from writetime.servers.process import free_port
from writetime.storage.locations import Location, find_sstables


def cql_with_ids(schemas: Iterable[TableSchema]) -> str:
    """Return CREATE statements of tables with their ids, after those of the types that they use."""
    statements: dict[str, None] = {}
    for schema in schemas:
        for udt in schema.udts():
            fields = ", ".join(f"{quote_name(n)} {t}" for n, t in udt.fields)
            statements[f"CREATE TYPE {udt.keyspace}.{udt.name} ({fields});"] = None
        joiner = " AND" if schema.clustering else " WITH"
        statements[f"{schema.create_statement()}{joiner} ID = {schema.id};"] = None
    return "\n".join(statements)


class FormatServer(CassandraServer):
    """A node that writes one storage format (`nb`, `oa` or `da`), with the compressors that tables ask for. Cassandra
    6.0 writes `pa` instead of `oa`, and `ea` instead of `da`.
    """

    def __init__(self, home: Path, version: str, **configuration: object) -> None:
        settings = load()
        self.port = free_port()
        super().__init__(
            settings.model_copy(
                update={
                    "cassandra": settings.cassandra.model_copy(update={"port": self.port}),
                    "embedded": settings.embedded.model_copy(
                        update={
                            "home": home,
                            "cassandra_storage_port": free_port(),
                            "cassandra_heap_mb": 512,
                            "start_timeout_seconds": START_SECONDS,
                        }
                    ),
                }
            )
        )
        self._version = version
        self._extra = configuration
        # Of the JVM, from the next start on.
        self.options: list[str] = []
        self._cluster: Cluster | None = None
        self._session: Any = None

    def nodetool(self, *arguments: str) -> None:
        """Run a command of the `nodetool` that belongs to the node's version."""
        run = nodetool if shutil.which("nodetool") else oracle.nodetool
        run(self.jmx_port, *arguments)

    @staticmethod
    def now() -> int:
        """Return the second that the server and its clients are in."""
        return int(time.time())

    def command(self) -> list[str]:
        """Let the node find files such as `commitlog_archiving.properties` in its folder."""
        program, *arguments = super().command()
        arguments[arguments.index("-cp") + 1] += f"{os.pathsep}{self.folder}"
        return [program, *self.options, *arguments]

    def configuration(self) -> dict[str, object]:
        configuration = super().configuration()
        configuration["flush_compression"] = "table"
        configuration["num_tokens"] = 1
        # Blocks so small that partitions of some KiB have many.
        configuration["column_index_size"] = "1KiB"
        configuration["storage_compatibility_mode"] = "CASSANDRA_4" if self._version == "nb" else "NONE"
        if self._version in {"da", "ea"}:
            configuration["sstable"] = {"selected_format": "bti"}
        return {name: value for name, value in (configuration | self._extra).items() if value is not None}

    def _connect(self) -> Cluster:
        """Return a connection that waits for a server on a busy machine."""
        # Without the version the driver connects once for each that is newer.
        return Cluster(
            ["127.0.0.1"], port=self.port, connect_timeout=60, control_connection_timeout=60, protocol_version=5
        )

    def configure(self, **configuration: object) -> None:
        """Change the configuration of the next start. None restores a default."""
        self._extra = self._extra | configuration

    def write(self, statements: Iterable[str]) -> list[Any]:
        """Execute statements; return the rows that each answered."""
        return [list(self.session().execute(statement)) for statement in statements]

    def session(self) -> Any:
        """Return a session that is kept until the server stops."""
        if self._session is None:
            self._cluster = self._connect()
            self._session = self._cluster.connect()
            self._session.default_timeout = 60
        return self._session

    def write_one(self, statement: str) -> None:
        """Execute a statement."""
        self.session().execute(statement)

    def schemas(self) -> list[TableSchema]:
        """Return the schemas of all tables that can be read."""
        return [s for s in read_schemas(self.session()).values() if isinstance(s, TableSchema)]

    @property
    def cdc_raw(self) -> Path:
        """The folder of the commit log segments that have changes to capture."""
        return self.folder / "cdc_raw"

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> bool:
        """Close the session and stop the node, which flushes its tables."""
        if self._cluster is not None:
            self._cluster.shutdown()
            self._cluster = self._session = None
        return super().stop(sig)

    def sstables(self, keyspace: str, table: str) -> list[Location]:
        """Return the SSTables of a table; stop the server first, as that flushes them."""
        folders = sorted((self.folder / "data" / keyspace).glob(f"{table}-*"))
        return [location for folder in folders for location in find_sstables(str(folder))]


class KilledServer(FormatServer):
    """A node that is killed while schemas change."""

    def command(self) -> list[str]:
        """Let changes of schemas be on disk at once."""
        program, *arguments = super().command()
        return [program, flushes_schemas(True), *arguments]
