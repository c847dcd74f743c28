"""A Cassandra with the tables of a ScyllaDB: base tables, their CDC logs, and the tables that list streams."""

import random
import re
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cassandra import InvalidRequest
from cassandra.cluster import Cluster, Session
from cassandra.concurrent import execute_concurrent
from cassandra.query import UNSET_VALUE, BoundStatement

from tests.scylla_cdc.writer import Group, Mutation, Splitter, mutations, numbered
from tests.support import oracle
from writetime.core.config import ScyllaCdc, Settings
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.schema.types import quote_name
from writetime.scylla_cdc.log import log_table
from writetime.servers.cassandra import CassandraServer
from writetime.storage.kernel.primitives import token
from writetime.storage.segment import find_segments

META = "cdc_streams"
SECOND = 1_000_000
_REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
_TABLES = [
    f"CREATE KEYSPACE {META} WITH replication = {_REPLICATION}",
    f"CREATE TABLE {META}.cdc_generation_timestamps (key text, time timestamp, expired timestamp,"
    " PRIMARY KEY (key, time)) WITH CLUSTERING ORDER BY (time DESC)",
    f"CREATE TABLE {META}.cdc_streams_descriptions_v2 (time timestamp, range_end bigint, streams frozen<set<blob>>,"
    " PRIMARY KEY (time, range_end))",
    f"CREATE TABLE {META}.cdc_timestamps (keyspace_name text, table_name text, timestamp timestamp,"
    " PRIMARY KEY ((keyspace_name, table_name), timestamp)) WITH CLUSTERING ORDER BY (timestamp DESC)",
    f"CREATE TABLE {META}.cdc_streams (keyspace_name text, table_name text, timestamp timestamp, stream_state tinyint,"
    " stream_id blob, PRIMARY KEY ((keyspace_name, table_name), timestamp, stream_state, stream_id))",
    f"CREATE TABLE {META}.truncated (table_uuid uuid, shard int, position int, segment_id bigint,"
    " truncated_at timestamp static, PRIMARY KEY (table_uuid, shard))",
    f"CREATE TABLE {META}.scylla_tables (keyspace_name text, table_name text, cdc frozen<map<text, text>>,"
    " PRIMARY KEY (keyspace_name, table_name))",
]


@dataclass(frozen=True)
class StreamSet:
    """Streams from a time (microseconds) on, each for the tokens up to its own (the first 8 bytes of its id)."""

    time: int
    streams: tuple[bytes, ...]

    def of(self, key: bytes) -> bytes:
        """Return the stream of a partition key."""
        wanted = token(key)
        return next((s for s in self.streams if struct.unpack(">q", s[:8])[0] >= wanted), self.streams[0])


def stream_set(r: random.Random, time: int, ends: Iterable[int]) -> StreamSet:
    """Make a set with new streams, by the last tokens of their ranges."""
    return StreamSet(time, tuple(struct.pack(">q", end) + r.randbytes(8) for end in sorted(ends)))


class CdcDatabase:
    """The database of the tests."""

    def __init__(self, settings: Settings) -> None:
        names = {"generation_times": "cdc_generation_timestamps", "generation_streams": "cdc_streams_descriptions_v2"}
        names |= {"tablet_times": "cdc_timestamps", "tablet_streams": "cdc_streams", "table_options": "scylla_tables"}
        names |= {"truncations": "truncated"}
        tables = {option: f"{META}.{name}" for option, name in names.items()}
        self.settings = settings.model_copy(
            update={"scylla_cdc": ScyllaCdc.model_validate({"confidence_seconds": 0, **tables})}
        )
        self._folder = CassandraServer(settings).folder
        self._cluster = Cluster(["127.0.0.1"], port=settings.cassandra.port, connect_timeout=60)
        self.session: Session = self._cluster.connect()
        self.session.default_timeout = 60
        for statement in _TABLES:
            self.session.execute(statement)

    def close(self) -> None:
        self._cluster.shutdown()

    def with_options(self, **scylla_cdc: object) -> Settings:
        """Return the settings with others for reading logs."""
        changed = self.settings.scylla_cdc.model_copy(update=scylla_cdc)
        return self.settings.model_copy(update={"scylla_cdc": changed})

    def options(self) -> dict[str, str]:
        """Return the options of the data source."""
        given = self.settings.scylla_cdc.model_dump(exclude_defaults=True)
        return {name: str(value) for name, value in given.items()} | {"port": str(self.settings.cassandra.port)}

    def create(self, schema: TableSchema, **options: str) -> TableSchema:
        """Create a table and its log; return the log's schema in the database."""
        joiner = " AND " if " WITH " in schema.create_statement() else " WITH "
        self.session.execute(schema.create_statement() + joiner + "cdc = true")
        self.create_log(schema)
        self.set_options(schema, **{"enabled": "true", **options})
        return self.current(schema)

    def current(self, schema: TableSchema) -> TableSchema:
        """Return the current schema of a table."""
        return read_schema(self.session, schema.full_name)

    def create_log(self, schema: TableSchema) -> None:
        """Create the log of a table."""
        statement = log_table(schema).create_statement()
        self.session.execute(statement + " AND gc_grace_seconds = 0")

    def set_options(self, schema: TableSchema, **options: str) -> None:
        """Set a table's CDC options."""
        query = f"INSERT INTO {META}.scylla_tables (keyspace_name, table_name, cdc) VALUES (%s, %s, %s)"
        self.session.execute(query, [schema.keyspace, schema.name, options])

    def write(self, statements: Iterable[str]) -> None:
        """Execute statements, which a generator made that does not know which ranges and keys are empty."""
        for statement in statements:
            try:
                self.session.execute(statement)
            except InvalidRequest as e:
                if "DELETE" not in statement and "BATCH" not in statement and "Key may not be empty" not in str(e):
                    raise

    def mutations(self, schemas: Sequence[TableSchema]) -> list[Mutation]:
        """Return all that was written to tables, from the commit log."""
        udts = {udt.name: udt for schema in schemas for udt in schema.udts()}
        paths = [segment.path for segment in find_segments(str(self._folder / "cdc_raw"))]
        lines = oracle.segments(schemas, udts.values(), paths)
        return mutations(lines, {str(s.id): s.name for s in schemas})

    def announce_generations(self, sets: Iterable[StreamSet]) -> None:
        """Publish sets of streams of all tables in keyspaces with vnodes."""
        for found in sets:
            for stream in found.streams:
                self.session.execute(
                    f"INSERT INTO {META}.cdc_streams_descriptions_v2 (time, range_end, streams) VALUES (%s, %s, %s)",
                    [found.time // 1000, struct.unpack(">q", stream[:8])[0], {stream}],
                )
            self.session.execute(
                f"INSERT INTO {META}.cdc_generation_timestamps (key, time) VALUES ('timestamps', %s)",
                [found.time // 1000],
            )

    def copy_generations(self, keyspace: str) -> None:
        """Copy the sets of streams of keyspaces with vnodes into a keyspace whose replication factor is 3."""
        replication = _REPLICATION.replace("'replication_factor': 1", "'replication_factor': 3")
        self.session.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
        for table, create in (
            ("cdc_generation_timestamps", _TABLES[1]),
            ("cdc_streams_descriptions_v2", _TABLES[2]),
        ):
            self.session.execute(create.replace(f"{META}.", f"{keyspace}."))
            for row in self.session.execute(f"SELECT * FROM {META}.{table}"):
                names, values = zip(*row._asdict().items(), strict=True)
                places = ", ".join(["%s"] * len(names))
                insert = f"INSERT INTO {keyspace}.{table} ({', '.join(names)}) VALUES ({places})"
                self.session.execute(insert, values)

    def announce_tablets(self, schema: TableSchema, sets: Sequence[StreamSet]) -> None:
        """Publish sets of streams of one table."""
        table = [schema.keyspace, schema.name]
        for before, found in zip([None, *sets], sets, strict=False):
            old = set(before.streams) if before else set()
            states = [(0, s) for s in found.streams] + [(1, s) for s in old - set(found.streams)]
            states += [(2, s) for s in set(found.streams) - old]
            for state, stream in states:
                self.session.execute(
                    f"INSERT INTO {META}.cdc_streams (keyspace_name, table_name, timestamp, stream_state, stream_id) "
                    "VALUES (%s, %s, %s, %s, %s)",
                    [*table, found.time // 1000, state, stream],
                )
            self.session.execute(
                f"INSERT INTO {META}.cdc_timestamps (keyspace_name, table_name, timestamp) VALUES (%s, %s, %s)",
                [*table, found.time // 1000],
            )

    def log(self, schema: TableSchema, groups: Iterable[Group], sets: Sequence[StreamSet], seed: int = 0) -> list[str]:
        """Write groups to a table's log, each to the stream of its time and key.

        Return what the changes' origins should be: stream, time and number of every row but the ends of ranges.
        """
        log = log_table(schema)
        names = [c.name for c in log.columns]
        key = [c.name for c in log.partition_key + log.clustering]
        others = [n for n in names if n not in key]
        assignments = ", ".join(f"{quote_name(n)} = ?" for n in others)
        where = " AND ".join(f"{quote_name(n)} = ?" for n in key)
        table = f"{quote_name(log.keyspace)}.{quote_name(log.name)}"
        prepared = self.session.prepare(f"UPDATE {table} USING TIMESTAMP ? AND TTL ? SET {assignments} WHERE {where}")
        r = random.Random(seed)
        origins = []
        bound = []
        for group in groups:
            stream = [s for s in sets if s.time <= group.time][-1].of(group.key)
            for row in numbered(group, r):
                statement = BoundStatement(prepared)
                values: list[Any] = [struct.pack(">q", group.time), struct.pack(">i", 86_400)]
                row["cdc$stream_id"] = stream
                assert row.keys() <= set(names)
                values += [UNSET_VALUE if row.get(n) is None else row[n] for n in [*others, *key]]
                statement.values = values
                bound.append(statement)
                if row["cdc$operation"] not in (b"\x07", b"\x08"):
                    uuid = row["cdc$time"].hex()  # type: ignore[union-attr]
                    text = "-".join(uuid[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
                    origins.append(f"0x{stream.hex()}/{text}/{int.from_bytes(row['cdc$batch_seq_no'] or b'', 'big')}")
        execute_concurrent(self.session, [(s, ()) for s in bound], concurrency=32, raise_on_first_error=True)
        return origins


def groups_of(schema: TableSchema, found: Iterable[Mutation]) -> list[Group]:
    """Return the groups of a table's mutations."""
    splitter = Splitter(schema)
    return [group for m in found if m.table == schema.name for group in splitter.groups(m)]


class Timed:
    """Gives statements write times near to now, few enough to meet, and TTLs of their own."""

    def __init__(self, seed: int, base: int, times: Sequence[int]) -> None:
        self._random = random.Random(seed)
        self._base = base
        self._times = times
        self._ttls = 0

    def __call__(self, statement: str) -> str:
        made = re.sub(r"TIMESTAMP -?\d+", lambda _: f"TIMESTAMP {self.time()}", statement)
        return re.sub(r"TTL (\d+)", self._ttl, made)

    def time(self) -> int:
        """Return one of the times."""
        return self._base + self._random.choice(self._times)

    def _ttl(self, match: re.Match[str]) -> str:
        # When a cell expires is not logged, so of two with the same time and TTL it is not known which is the later.
        self._ttls += 1
        return match[0] if match[1] == "1" else f"TTL {100_000 + 1000 * self._ttls}"


def now() -> int:
    """Return the time in microseconds."""
    return time.time_ns() // 1000
