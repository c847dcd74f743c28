"""A real server's tables: their changes from SSTables and commit logs, and their rows by CQL."""

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from cassandra import InvalidRequest
from cassandra.cluster import Session

from tests.support import answers
from tests.support.examples import is_long_run
from tests.support.format_server import FormatServer
from tests.support.generate import KEYSPACE, Generator, create_udts
from tests.support.merged import History
from tests.support.tables import ALTERED, counted, counter_writes, every_type, ties
from writetime.changes.model import change_schema
from writetime.schema.table import TableSchema
from writetime.storage.commitlog import CommitLogReader
from writetime.storage.locations import Location
from writetime.storage.segment import find_segments
from writetime.storage.sstable import SSTable

TABLES = 12 if is_long_run() else 6
ROUNDS = 4
# To each table in a round.
WRITES = 30 if is_long_run() else 15
COMPACTION = "{'class': 'SizeTieredCompactionStrategy', 'enabled': 'false'}"


@pytest.fixture(scope="session")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[History]]:
    server = FormatServer(tmp_path_factory.mktemp("merge"), "nb")
    try:
        server.start()
        yield _histories(server)
    finally:
        server.stop()


def _histories(server: FormatServer) -> list[History]:
    generator = Generator(11)
    # One second passes before the query.
    generator._ttls = [1, 100_000, 200_000]
    names = [f"t{i}" for i in range(TABLES)]
    made = [generator.schema(name) for name in names] + [every_type()]
    written = {schema.name: generator.writes(schema, ROUNDS * WRITES) for schema in made}
    written["ties"] = ties(generator, made[-1])
    written["counted"] = counter_writes(generator, ROUNDS * WRITES)
    made.append(counted())
    server.write(create_udts())
    for schema in made:
        joiner = " AND " if " WITH " in schema.create_statement() else " WITH "
        options = "cdc = true AND compaction = " + COMPACTION
        server.write_one(schema.create_statement() + joiner + options)
    for number in range(ROUNDS):
        for schema in made:
            _write(server, written[schema.name][number::ROUNDS])
        for statement in ALTERED[number]:
            server.write_one(statement)
        # So that there are several SSTables.
        server.nodetool("flush", KEYSPACE)
    time.sleep(2)
    known = server.schemas()
    schemas = [s for s in known if s.keyspace == KEYSPACE]
    with answers.raw_session(server.port) as session:
        asked = {s.name: _answers(session, s) for s in schemas}
    server.stop()
    log = _log(server, known, [s.full_name for s in schemas])
    return [
        History(
            schema,
            [_scan(at, schema) for at in server.sstables(KEYSPACE, schema.name)],
            log[schema.name],
            *asked[schema.name],
        )
        for schema in schemas
    ]


def _scan(location: Location, schema: TableSchema) -> pa.Table:
    return pa.Table.from_batches(SSTable(location, schema).scan(), schema=change_schema(schema))


def _write(server: FormatServer, statements: list[str]) -> None:
    for statement in statements:
        try:
            server.write_one(statement)
        except InvalidRequest as e:
            # The generator does not know that a range must not be empty, nor a key.
            if "DELETE" not in statement and "BATCH" not in statement and "Key may not be empty" not in str(e):
                raise


def _answers(
    session: Session, schema: TableSchema
) -> tuple[list[list[bytes | None]], list[dict[str, int | None]], int]:
    return answers.rows(session, schema), answers.write_times(session, schema), int(time.time())


def _log(server: FormatServer, known: list[TableSchema], wanted: list[str]) -> dict[str, pa.Table]:
    found: dict[str, list[pa.RecordBatch]] = {}
    reader = CommitLogReader(known, wanted)
    for segment in find_segments(str(server.cdc_raw)):
        for schema, batch in reader.read(segment):
            found.setdefault(schema.name, []).append(batch)
    return {name: pa.Table.from_batches(batches) for name, batches in found.items()}
