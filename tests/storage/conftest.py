"""Data of real servers: generated tables in each format, written once per session."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest
from pyspark.sql import SparkSession

from tests.storage import handmade
from tests.support import oracle
from tests.support.format_server import FormatServer
from tests.support.generate import COMPRESSIONS, KEYSPACE, SEED, UDTS, Generator
from writetime.schema.table import TableSchema
from writetime.schema.types import quote_name
from writetime.sources.commitlog import CommitLogSource
from writetime.sources.sstable import SSTableSource
from writetime.storage.files import Location

WRITES = 60
# How each node compresses its commit log.
LOG_COMPRESSION = {"nb": None, "oa": [{"class_name": "LZ4Compressor"}], "da": [{"class_name": "ZstdCompressor"}]}


@dataclass
class Written:
    """The tables that one server wrote, where their SSTables are, and what the oracle reads in those."""

    version: str
    server: FormatServer
    schemas: list[TableSchema]
    all_schemas: list[TableSchema]
    sstables: dict[str, list[Location]]
    lines: dict[str, list[dict[str, Any]]]
    answers: handmade.Answers

    def handmade(self, table: str) -> tuple[TableSchema, list[Location]]:
        """Return the schema and the SSTables of a table of `handmade`."""
        schema = next(s for s in self.all_schemas if (s.keyspace, s.name) == (handmade.KEYSPACE, table))
        return schema, self.sstables[f"{handmade.KEYSPACE}.{table}"]


def _schemas(generator: Generator) -> list[TableSchema]:
    """Most of what decides an encoding is in the number of columns: 64 change the set of columns, 33 the clustering."""
    schemas = [generator.schema(f"t{i}") for i in range(8)]
    schemas += [generator.schema(f"wide{n}", regulars=n, clusterings=1, statics=0) for n in (63, 64, 65, 70)]
    schemas += [generator.schema(f"deep{n}", clusterings=n, regulars=2) for n in (32, 33)]
    schemas.append(generator.schema("statics", statics=65, clusterings=1, regulars=1))
    return schemas


def create_udts() -> list[str]:
    """Statements that create the generator's keyspace and types."""
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    statements = [f"CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}"]
    for udt in UDTS.values():
        fields = ", ".join(f"{quote_name(n)} {t}" for n, t in udt.fields)
        statements.append(f"CREATE TYPE {KEYSPACE}.{udt.name} ({fields})")
    return statements


@pytest.fixture(scope="session", params=["nb", "oa", "da"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    version = request.param
    home: Path = tmp_path_factory.mktemp(version)
    # Identifiers of both kinds, hard links of what is flushed, and a compression of the commit log each.
    server = FormatServer(
        home,
        version,
        uuid_sstable_identifiers_enabled=version == "da",
        incremental_backups=True,
        commitlog_compression=LOG_COMPRESSION[version],
    )
    # Before `oa` no cell expires after 2038.
    seed = 3 * SEED + {"nb": 1, "oa": 2, "da": 3}[version]
    generator = Generator(seed, max_ttl=1_000_000) if version == "nb" else Generator(seed)
    schemas = _schemas(generator)
    try:
        server.start()
        server.write(create_udts())
        for i, schema in enumerate(schemas):
            options = f"compression = {COMPRESSIONS[i % len(COMPRESSIONS)]} AND cdc = true"
            joiner = " AND " if " WITH " in schema.create_statement() else " WITH "
            server.write([schema.create_statement() + joiner + options])
            for statement in generator.writes(schema, WRITES):
                try:
                    server.write_one(statement)
                except InvalidRequest as e:
                    # The generator does not know that a range must not be empty, nor a key.
                    if "DELETE" not in statement and "BATCH" not in statement and "Key may not be empty" not in str(e):
                        raise
        answers = handmade.write(server)
        # Half of the tables as a flush has left them, half as compaction has.
        server.nodetool("compact", KEYSPACE, *(schema.name for schema in schemas[::2]))
        server.nodetool("compact", handmade.KEYSPACE, *handmade.COMPACTED)
        all_schemas = server.schemas()
    finally:
        server.stop()
    sstables = {schema.name: server.sstables(KEYSPACE, schema.name) for schema in schemas}
    sstables |= {
        f"{handmade.KEYSPACE}.{s.name}": server.sstables(handmade.KEYSPACE, s.name)
        for s in all_schemas
        if s.keyspace == handmade.KEYSPACE
    }
    lines = oracle.sstables(location.path("Data.db") for locations in sstables.values() for location in locations)
    return Written(version, server, schemas, all_schemas, sstables, lines, answers)


@pytest.fixture(scope="package")
def spark(spark: SparkSession) -> SparkSession:
    """The session of all tests, with the data sources made known to it."""
    spark.dataSource.register(SSTableSource)
    spark.dataSource.register(CommitLogSource)
    return spark
