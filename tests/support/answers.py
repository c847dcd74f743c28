"""A real database's rows, without the driver's decoding, which fails for dates beyond Python's, not-a-number and empty
values."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from cassandra import ConsistencyLevel
from cassandra.auth import AuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.protocol import ResultMessage, _ProtocolHandler  # type: ignore[attr-defined]

from writetime.schema.mapping import stored_type
from writetime.schema.table import TableSchema
from writetime.schema.types import is_complex, quote_name, quote_table
from writetime.schema.values import decoder


class _Raw:
    """Stands for every type and leaves values as they come."""

    @staticmethod
    def from_binary(data: bytes | None, _: int) -> bytes | None:
        return data


class _RawResult(ResultMessage):
    def recv_results_metadata(self, f: Any, user_type_map: Any) -> None:
        super().recv_results_metadata(f, user_type_map)
        self.column_metadata = [(*described[:3], _Raw) for described in self.column_metadata]


class _RawHandler(_ProtocolHandler):
    message_types_by_opcode = _ProtocolHandler.message_types_by_opcode | {_RawResult.opcode: _RawResult}


@contextmanager
def raw_session(port: int, host: str = "127.0.0.1", login: AuthProvider | None = None) -> Iterator[Session]:
    """Open a session whose rows hold bytes. All replicas have to answer, because some may not have the last writes."""
    profile = ExecutionProfile(consistency_level=ConsistencyLevel.ALL, request_timeout=60)
    # A busy node takes longer than the default of two seconds to return the schemas of all tables.
    cluster = Cluster(
        [host],
        port=port,
        auth_provider=login,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        control_connection_timeout=60,
    )
    try:
        yield raw(cluster.connect())
    finally:
        cluster.shutdown()


def raw(session: Session) -> Session:
    """Let the rows that a session answers hold bytes."""
    session.client_protocol_handler = _RawHandler
    return session


def rows(session: Session, schema: TableSchema) -> list[list[bytes | None]]:
    """Return the rows of `SELECT *`, the columns in the schema's order."""
    names = ", ".join(quote_name(c.name) for c in schema.columns)
    return [list(row) for row in session.execute(f"SELECT {names} FROM {quote_table(schema.full_name)}")]


def decoded(answer: list[list[bytes | None]], schema: TableSchema) -> pa.Table:
    """Return rows as a table, with values in the stored form."""
    columns: dict[str, pa.Array] = {}
    for i, column in enumerate(schema.columns):
        decode = decoder(column.type)
        values = [None if (data := row[i]) is None else decode(data) for row in answer]
        columns[column.name] = pa.array(values, stored_type(column.type))
    return pa.table(columns)


def write_times(session: Session, schema: TableSchema) -> list[dict[str, int | None]]:
    """Return the write time of every simple cell that is not part of the key, and `ttl <name>`, row by row."""
    columns = [c for c in schema.static + schema.regular if not is_complex(c.type)]
    if not columns:
        return []
    asked = [f"{f}({quote_name(c.name)})" for c in columns for f in ("writetime", "ttl")]
    names = [prefix + c.name for c in columns for prefix in ("", "ttl ")]
    answer = session.execute(f"SELECT {', '.join(asked)} FROM {quote_table(schema.full_name)}")
    return [
        {n: None if v is None else int.from_bytes(v, "big", signed=True) for n, v in zip(names, row, strict=True)}
        for row in answer
    ]
