"""Records files that Cassandra writes in each format, for attacks that start no server: `python -m tests.attack.record`
those of 5.0, and with the argument 6.0 those of that version.
"""

import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.attack.corpus import CASSANDRA
from tests.support import cassandra_versions
from tests.support.dictionaries import COMPRESSION, use_dictionary
from tests.support.format_server import FormatServer, cql_with_ids
from tests.support.segments import mutations_of, one_section
from writetime.storage.locations import find_sstables
from writetime.storage.segment import find_segments

_KEYSPACE = "attack"
_FORMATS = {"5.0": ("nb", "oa", "da"), "6.0": ("pa", "ea")}
_MUTATIONS = 60
_TABLES = [
    f"CREATE KEYSPACE {_KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
    f"CREATE TYPE {_KEYSPACE}.pair (a int, b text)",
    f"CREATE TABLE {_KEYSPACE}.mixed (k text, h uuid, c text, d bigint, e frozen<pair>, s list<text> STATIC,"
    " t int STATIC, b boolean, f double, i inet, l list<int>, m map<text, blob>, n varint, p pair,"
    " q frozen<pair>, u timeuuid, v set<int>, w vector<float, 2>, PRIMARY KEY ((k, h), c, d, e))"
    " WITH CLUSTERING ORDER BY (c DESC, d ASC, e ASC) AND cdc = true"
    " AND compression = {'class': 'SnappyCompressor', 'chunk_length_in_kb': 4}",
    f"CREATE TABLE {_KEYSPACE}.counted (k int, c int, n counter, s counter STATIC, PRIMARY KEY (k, c)) WITH cdc = true"
    " AND compression = {'class': 'DeflateCompressor', 'chunk_length_in_kb': 4}",
    f"CREATE TABLE {_KEYSPACE}.blocks (k int, c int, v text, s text STATIC, PRIMARY KEY (k, c)) WITH cdc = true"
    " AND compression = {'class': 'LZ4Compressor', 'chunk_length_in_kb': 4}",
    f"CREATE TABLE {_KEYSPACE}.many (k int PRIMARY KEY, v text) WITH cdc = true"
    " AND compression = {'class': 'ZstdCompressor', 'chunk_length_in_kb': 4}",
    f"CREATE TABLE {_KEYSPACE}.wide (k int PRIMARY KEY, {', '.join(f'c{i} int' for i in range(70))}) WITH cdc = true"
    " AND compression = {'enabled': false}",
]

_TRAINED = (
    f"CREATE TABLE {_KEYSPACE}.trained (k int PRIMARY KEY, v text) WITH cdc = true AND compression = {COMPRESSION}"
)


def _writes() -> list[str]:
    r = random.Random(1)
    uuids = [f"{i:08x}-0000-1000-8000-000000000001" for i in range(4)]
    statements = []
    for n in range(40):
        key = f"k = 'key{n % 3}' AND h = {uuids[n % 4]}"
        row = f"{key} AND c = '{'x' * (n % 5)}' AND d = {r.randrange(-3, 3)} AND e = {{a: {n % 2}, b: 'b'}}"
        statements += [
            f"UPDATE {_KEYSPACE}.mixed USING TTL {1000 + n} SET b = true, f = {n}.5, i = '10.0.0.{n}',"
            f" l = l + [{n}, 7], m['key{n}'] = 0x0{n % 10}ff, n = {10**n}, p.a = {n}, q = {{a: 1}},"
            f" u = {uuids[n % 4]}, v = v + {{{n}}}, w = [0.5, {n}] WHERE {row}",
            f"UPDATE {_KEYSPACE}.mixed SET s = s + ['static'], t = {n} WHERE {key}",
            f"UPDATE {_KEYSPACE}.mixed SET p = {{b: 'whole'}}, l = [1], m = null WHERE {row}",
            f"UPDATE {_KEYSPACE}.counted SET n = n + {n} WHERE k = {n % 4} AND c = {n % 7}",
            f"INSERT INTO {_KEYSPACE}.many (k, v) VALUES ({n}, '{r.getrandbits(600):x}')",
            f"INSERT INTO {_KEYSPACE}.wide (k, c{n}, c69) VALUES ({n % 9}, {n}, 1)",
            f"INSERT INTO {_KEYSPACE}.blocks (k, c, v, s) VALUES ({n % 2}, {n}, '{r.getrandbits(800):x}', 'st')"
            " USING TTL 9999",
        ]
        if n % 8 == 7:
            statements += [
                f"DELETE FROM {_KEYSPACE}.mixed WHERE {key} AND c > 'x'",
                f"DELETE b, l FROM {_KEYSPACE}.mixed WHERE {row}",
                f"DELETE FROM {_KEYSPACE}.blocks WHERE k = {n % 2} AND c > {n - 5} AND c <= {n + 9}",
                f"DELETE n FROM {_KEYSPACE}.counted WHERE k = {n % 4} AND c = 0",
                f"DELETE FROM {_KEYSPACE}.many WHERE k = {n}",
            ]
    columns = [f"c{i}" for i in range(70)]
    statements.append(
        f"INSERT INTO {_KEYSPACE}.wide (k, {', '.join(columns)}) VALUES (99, {', '.join(str(i) for i in range(70))})"
    )
    statements.append(f"UPDATE {_KEYSPACE}.counted SET s = s + 1 WHERE k = 1")
    return statements


def _record(version: str, folder: Path, home: Path, *, is_6: bool) -> None:
    server = FormatServer(home, version, uuid_sstable_identifiers_enabled=version in {"da", "ea"})
    server.start()
    try:
        server.write(_TABLES)
        for statement in _writes():
            server.write_one(statement)
        if is_6:
            server.write_one(_TRAINED)
            use_dictionary(server, _KEYSPACE, ["trained"])
            for k in range(60):
                server.write_one(
                    f"INSERT INTO {_KEYSPACE}.trained (k, v) VALUES ({k}, 'order {k} of customer {k * k}')"
                )
        server.nodetool("flush", _KEYSPACE)
        # 6.0-alpha2 compacts tables of 64 columns to files that it cannot read.
        compacted = ["counted"] if is_6 else ["counted", "wide"]
        server.nodetool("compact", _KEYSPACE, *compacted)
        server.nodetool("snapshot", "-t", "recorded", _KEYSPACE)
        schemas = [s for s in server.schemas() if s.keyspace == _KEYSPACE]
    finally:
        server.stop()
    for schema in schemas:
        (source,) = (server.folder / "data" / _KEYSPACE).glob(f"{schema.name}-*/snapshots/recorded")
        target = folder / schema.name
        target.mkdir(parents=True)
        for path in source.iterdir():
            if path.name.endswith(".db") or path.name.endswith((".crc32", "TOC.txt", "schema.cql")):
                shutil.copyfile(path, target / path.name)
        (_,) = find_sstables(str(target))
    (folder / "schema.cql").write_text(cql_with_ids(schemas) + "\n")
    ids = [schema.id.bytes for schema in schemas if schema.id is not None]
    segments = find_segments(str(server.cdc_raw))
    mutations = [m for segment in segments for m in mutations_of(segment) if any(i in m[:40] for i in ids)]
    chosen = sorted(random.Random(2).sample(range(len(mutations)), _MUTATIONS))
    path = folder / segments[0].name
    path.write_bytes(one_section(segments[0], [mutations[i] for i in chosen]))


def main() -> None:
    """Record the files of a version of the database again, in each format."""
    database = sys.argv[1] if len(sys.argv) > 1 else cassandra_versions.EMBEDDED
    with tempfile.TemporaryDirectory() as programs:
        cassandra_versions.use(database, Path(programs))
        _record_all(database)


def _record_all(database: str) -> None:
    for version in _FORMATS[database]:
        shutil.rmtree(CASSANDRA / version, ignore_errors=True)
        with tempfile.TemporaryDirectory() as home:
            _record(version, CASSANDRA / version, Path(home), is_6=database == "6.0")


if __name__ == "__main__":
    main()
