"""Data of real servers: generated tables in each format, written once per session."""

from pathlib import Path

import pytest
from cassandra import InvalidRequest
from pyspark.sql import SparkSession

from tests.storage import handmade
from tests.storage.written import Written
from tests.support import dictionaries, oracle
from tests.support.examples import is_long_run
from tests.support.format_server import FormatServer
from tests.support.generate import COMPRESSIONS, KEYSPACE, SEED, Generator, create_udts
from writetime.schema.table import TableSchema
from writetime.sources.commitlog import CommitLogSource
from writetime.sources.sstable import SSTableSource

# To each generated table.
WRITES = 60 if is_long_run() else 30
LZ4, ZSTD = ([{"class_name": f"{name}Compressor"}] for name in ("LZ4", "Zstd"))
# How each node compresses its commit log.
LOG_COMPRESSION = {"nb": None, "oa": LZ4, "da": ZSTD if is_long_run() else LZ4, "pa": LZ4}
# Its rows are those of `da`, and its index is that of `nb`. Short runs read it in test_sstable_crafted.
_NEW = pytest.mark.from_cassandra_5("others have no such format")
OA = pytest.param("oa", marks=[_NEW, pytest.mark.long_only("takes as much as one of the others")])
# With dictionaries.
PA = pytest.param("pa", marks=pytest.mark.from_cassandra_6("others have no such format"))


def _schemas(generator: Generator) -> list[TableSchema]:
    """The number of columns decides most encodings: 64 change that of the set of columns, 33 that of the clustering."""
    schemas = [generator.schema(f"t{i}") for i in range(8)]
    schemas += [generator.schema(f"wide{n}", regulars=n, clusterings=1, statics=0) for n in (63, 64, 65, 70)]
    schemas += [generator.schema(f"deep{n}", clusterings=n, regulars=2) for n in (32, 33)]
    schemas.append(generator.schema("statics", statics=65, clusterings=1, regulars=1))
    return schemas


@pytest.fixture(scope="session", params=["nb", OA, pytest.param("da", marks=_NEW), PA])
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cassandra_version: str
) -> Written:
    version = request.param
    compressions = [*COMPRESSIONS, dictionaries.COMPRESSION] if cassandra_version == "6.0" else COMPRESSIONS
    home: Path = tmp_path_factory.mktemp(version)
    # Identifiers of both kinds, hard links of flushed SSTables, and a different compression of the commit log each.
    server = FormatServer(
        home,
        version,
        uuid_sstable_identifiers_enabled=True if version == "da" else None,
        incremental_backups=True,
        commitlog_compression=LOG_COMPRESSION[version],
    )
    # Before `oa` no cell expires after 2038.
    seed = 3 * SEED + {"nb": 1, "oa": 2, "da": 3, "pa": 0}[version]
    generator = Generator(seed, max_ttl=1_000_000) if version == "nb" else Generator(seed)
    schemas = _schemas(generator)
    try:
        server.start()
        server.write(create_udts())
        for i, schema in enumerate(schemas):
            options = f"compression = {compressions[i % len(compressions)]} AND cdc = true"
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
        if dictionaries.COMPRESSION in compressions:
            names = [schema.name for schema in schemas[len(COMPRESSIONS) :: len(compressions)]]
            dictionaries.use_dictionary(server, KEYSPACE, names)
        # Half of the tables as a flush has left them, half as compaction has.
        # 6.0-alpha2 compacts tables of 64 simple columns and more to files that it cannot read.
        compacted = [s for s in schemas[::2] if cassandra_version != "6.0" or len(s.regular + s.static) < 64]
        server.nodetool("compact", KEYSPACE, *(schema.name for schema in compacted))
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
