"""The files and answers of a real ScyllaDB in `tests/data/scylla`, and stand-ins for sessions with it.

A recording is a folder: `about.json`, rows of system tables in `system/`, and for each table its CDC log, its rows,
their write times and TTLs, and a snapshot. Rows are lists of the native protocol's bytes.
"""

import json
import re
import time
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
from cassandra import InvalidRequest
from cassandra.cluster import Session

from tests.support import answers
from tests.support.expected import plain_values
from tests.support.log_pages import Answer
from tests.support.merged import with_one_form
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.instants import UUID_EPOCH
from writetime.schema.system import schemas_of, settled_rows
from writetime.schema.table import TableSchema
from writetime.schema.types import parse_cql
from writetime.schema.values import decoder
from writetime.scylla_cdc.pages import Pages
from writetime.storage.locations import Location, find_sstables

SECOND = 1_000_000


@dataclass(frozen=True)
class Rows:
    """Rows as they were answered: each value as bytes or None, in the order of `columns`."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[bytes | None, ...], ...]

    @cached_property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]

    def dicts(self) -> Iterator[dict[str, bytes | None]]:
        for row in self.rows:
            yield dict(zip(self.names, row, strict=True))


@cache
def read_rows(path: Path) -> Rows:
    """Return the rows of a file, which queries ask for again and again."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    columns = tuple((name, cql_type) for name, cql_type in lines[0]["columns"])
    return Rows(columns, tuple(tuple(None if v is None else bytes.fromhex(v) for v in line) for line in lines[1:]))


@dataclass(frozen=True)
class Recording:
    """One keyspace of a ScyllaDB."""

    folder: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        return json.loads((self.folder / "about.json").read_text())

    @property
    def tables(self) -> list[str]:
        """The tables, as keyspace.table."""
        return self.about["tables"]

    @cached_property
    def schemas(self) -> dict[str, TableSchema]:
        """The schemas of the tables and of their logs, from the recorded system tables."""
        session = session_of(self)
        found = schemas_of(settled_rows(lambda query: [row._asdict() for row in session.execute(query)]))
        assert all(isinstance(schema, TableSchema) for schema in found.values()), found
        return cast(dict[str, TableSchema], found)

    def statements(self) -> list[str]:
        """The CQL that was executed without an error, in its order."""
        lines = [json.loads(line) for line in (self.folder / "statements.jsonl").read_text().splitlines()]
        texts = [line[0] for line in lines]
        following = [*texts[1:], ""]
        return [t for t, after in zip(texts, following, strict=True) if "-- fault" not in (t[:8], after[:8])]

    def of(self, table: str, what: str) -> Rows:
        """Return the rows of `log`, `select` or `times`; none where the database has none to answer."""
        path = self.folder / f"{table.partition('.')[2]}.{what}.jsonl"
        return read_rows(path) if path.exists() else Rows((), ())

    def sstables(self, table: str) -> list[Location]:
        """Return the SSTables of a table's snapshot.

        Its folder may have those of an earlier table of the same name as well: they are older than the table.
        """
        created = _seconds(cast(UUID, self.schemas[table].id))
        found = find_sstables(str(self.folder / f"{table.partition('.')[2]}.sstables"))
        return [location for location in found if made_at(location) >= created]

    def snapshot_at(self, table: str) -> int:
        """Return about when the snapshot was made, in seconds: its last SSTable was flushed for it.

        (`created_at` of the manifest may be of the earlier table.)
        """
        return max(map(made_at, self.sstables(table)))

    def system(self, table: str, of: str = "") -> Rows:
        """Return the rows of a system table; InvalidRequest, as the database's, if there is none."""
        path = self.folder / "system" / f"{table}{of and '.' + of}.jsonl"
        if not path.exists():
            raise InvalidRequest(f"unconfigured table {table}")
        return read_rows(path)


def made_at(location: Location) -> int:
    """Return the second at which an SSTable was made, from its identifier: a UUID of version 1 in base 36, first the
    days since 1582 and then the seconds of the day (`sstables/generation_type.hh` of ScyllaDB)."""
    days, seconds, _ = location.id.split("_")
    return int(days, 36) * 86_400 + int(seconds, 36) - UUID_EPOCH // 10_000_000


def _seconds(uuid: UUID) -> int:
    return (uuid.time - UUID_EPOCH) // 10_000_000


def find_recordings(folders: Iterable[Path]) -> list[Recording]:
    """Return the recordings in these folders, or below them."""
    found = [path.parent for folder in folders for path in sorted(folder.rglob("about.json"))]
    return [Recording(folder) for folder in found]


def session_of(recording: Recording) -> Session:
    """Return a session that answers queries of `system_schema` as the recorded database did."""
    return cast(Session, _RecordedSession(recording))


def pages_of(recording: Recording) -> Pages:
    """Return pages of the recorded logs and tables of streams."""
    return cast(Pages, _RecordedPages(recording))


# A recorded database has the clock of this machine.
_CLOCK = "SELECT toUnixTimestamp(now()) AS at FROM system.local"
_SELECT = re.compile(r"SELECT (?P<columns>.*) FROM (?P<table>\S+)(?: WHERE (?P<where>.*))?$")
_CONDITION = re.compile(r"(?P<column>\"[^\"]+\"|\w+) (?P<operator>=|>=|<|IN) (?P<value>\?|'\w+')")


class _RecordedSession:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def execute(self, query: str) -> list[Any]:
        if query == _CLOCK:
            return [(time.time_ns() // 1_000_000,)]
        match = _SELECT.match(query)
        assert match, query
        rows = self._recording.system(match["table"])
        asked = rows.names if match["columns"] == "*" else match["columns"].split(", ")
        chosen = [re.fullmatch(r"timestampAsBlob\((\w+)\) AS (\w+)|(\w+)", column) for column in asked]
        assert all(chosen), query
        types = dict(rows.columns)
        picked: list[tuple[str, str, Callable[[bytes], Any]]] = [
            (m[3], m[3], _decoder(types[m[3]])) if m[3] else (m[1], m[2], bytes) for m in chosen if m
        ]
        made = namedtuple("Row", [name for _, name, _ in picked])  # type: ignore[misc]
        return [
            made(*(None if (data := row[source]) is None else decode(data) for source, _, decode in picked))
            for row in rows.dicts()
        ]


def _decoder(cql_type: str) -> Callable[[bytes], Any]:
    decode = decoder(parse_cql(cql_type.replace("varchar", "text"), {}))
    return (lambda data: UUID(bytes=data)) if cql_type == "uuid" else decode


class _RecordedPages:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def prepare(self, query: str, consistency: int | None = None) -> str:
        del consistency
        match = _SELECT.match(query)
        assert match, query
        if match["table"].startswith(('"system"', "system.")):
            # The virtual tables of streams are recorded per table of the keyspace, and are there with tablets only.
            if not self._recording.about["tablets"]:
                raise InvalidRequest("unconfigured table")
        elif match["table"].startswith("system"):
            self._recording.system(_unquoted(match["table"]))
        return query

    def start(self, statement: str, values: Sequence[Any]) -> Answer:
        match = _SELECT.match(statement)
        assert match
        rows = self._rows(_unquoted(match["table"]), values)
        bound = iter(values)
        conditions = [
            (_unquoted(m["column"]), m["operator"], next(bound) if m["value"] == "?" else m["value"].strip("'"))
            for m in _CONDITION.finditer(match["where"])
        ]
        places = [(rows.names.index(column), operator, value) for column, operator, value in conditions]
        found = [row for row in rows.rows if all(_holds(row[i], o, _serialised(v, row[i])) for i, o, v in places)]
        # Write times of system tables were not recorded.
        names = [_unquoted(c) for c in re.findall(r'(?:"(?:[^"]|"")+"|\w+(?:\(\w+\))?)', match["columns"])]
        columns = [None if n.startswith("writetime(") else rows.names.index(n) for n in names]
        values = [[None if i is None else row[i] for row in found] for i in columns]
        columns_found = [pa.array(column, pa.binary()) for column in values]
        return Answer([pa.RecordBatch.from_arrays(columns_found, names=names)])

    def rows(self, statement: str, values: Sequence[Any]) -> pa.Table:
        return pa.Table.from_batches(self.start(statement, values))

    def _rows(self, table: str, values: Sequence[Any]) -> Rows:
        keyspace, _, name = table.partition(".")
        if keyspace == "system":
            return self._recording.system(table, values[1])
        if keyspace.startswith("system"):
            return self._recording.system(table)
        return self._recording.of(f"{keyspace}.{name.removesuffix('_scylla_cdc_log')}", "log")


def _unquoted(name: str) -> str:
    """Take the quotes off a name, or off both parts of a table's."""
    return re.sub(r'"((?:[^"]|"")+)"', lambda quoted: quoted[1].replace('""', '"'), name)


def _serialised(value: Any, stored: bytes | None) -> bytes | list[bytes]:
    match value:
        case UUID():
            return value.bytes
        case str():
            return value.encode()
        case int():
            return value.to_bytes(len(stored or bytes(8)), "big", signed=True)
    return value


def _holds(stored: bytes | None, operator: str, value: bytes | list[bytes]) -> bool:
    if isinstance(value, list):
        return stored in value
    if stored is None or operator == "=":
        return stored == value
    return _time_order(stored) >= _time_order(value) if operator == ">=" else _time_order(stored) < _time_order(value)


def _time_order(data: bytes) -> tuple[int, bytes]:
    """Order UUIDs of version 1 as the database does: by time, then by the lower half as signed bytes."""
    return UUID(bytes=data).time, bytes(byte ^ 0x80 for byte in data[8:])


Recorded = tuple[Recording, str]


def log_settings() -> Settings:
    """Settings that read all of a recorded log, however old it is."""
    return config.load(scylla_cdc={"log_ttl_seconds": 0})


def answered(rows: Rows, schema: TableSchema) -> pa.Table:
    """Return the rows of `SELECT`, the columns in the schema's order."""
    order = [rows.names.index(c.name) for c in schema.columns]
    return with_one_form(answers.decoded([[row[i] for i in order] for row in rows.rows], schema), schema)


def texts(rows: pa.Table) -> dict[str, list[str]]:
    """Return rows in a form that can be compared: Python has no dates of far years, and not-a-number is not itself."""
    return {name: [repr(value) for value in plain_values(rows[name].combine_chunks())] for name in rows.column_names}
