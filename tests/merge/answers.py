"""What a real database answers, without the driver's decoding: dates beyond Python's, not-a-number, empty values."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from cassandra.cluster import Cluster, Session
from cassandra.protocol import ResultMessage, _ProtocolHandler  # type: ignore[attr-defined]

from writetime.schema.mapping import arrow_type
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import is_complex, quote_name
from writetime.schema.values import decoder


class _Raw:
    """Stands for every type and leaves values as they come."""

    @staticmethod
    def from_binary(data: bytes | None, _: int) -> bytes | None:
        return data


class _RawResult(ResultMessage):
    def recv_results_metadata(self, *arguments: Any) -> None:
        super().recv_results_metadata(*arguments)
        self.column_metadata = [(*described[:3], _Raw) for described in self.column_metadata]


class _RawHandler(_ProtocolHandler):
    message_types_by_opcode = _ProtocolHandler.message_types_by_opcode | {_RawResult.opcode: _RawResult}


def raw_session(port: int) -> Session:
    """Return a session whose rows hold bytes; shut down its cluster in the end."""
    session = Cluster(["127.0.0.1"], port=port).connect()
    session.client_protocol_handler = _RawHandler
    session.default_timeout = 60
    return session


def rows(session: Session, schema: TableSchema) -> pa.Table:
    """Return what `SELECT *` answers."""
    return _table(session.execute(f"SELECT {_names(schema.columns)} FROM {schema.keyspace}.{schema.name}"), schema)


def write_times(session: Session, schema: TableSchema) -> list[dict[str, int | None]]:
    """Return the write time of every simple cell that is not part of the key, and `ttl <name>`, row by row."""
    columns = [c for c in schema.static + schema.regular if not is_complex(c.type)]
    if not columns:
        return []
    asked = [f"{f}({quote_name(c.name)})" for c in columns for f in ("writetime", "ttl")]
    names = [prefix + c.name for c in columns for prefix in ("", "ttl ")]
    answer = session.execute(f"SELECT {', '.join(asked)} FROM {schema.keyspace}.{schema.name}")
    return [
        {n: None if v is None else int.from_bytes(v, "big", signed=True) for n, v in zip(names, row, strict=True)}
        for row in answer
    ]


def _names(columns: Iterable[Column]) -> str:
    return ", ".join(quote_name(c.name) for c in columns)


def _table(answer: Iterable[Any], schema: TableSchema) -> pa.Table:
    decoders = [decoder(c.type) for c in schema.columns]
    found = list(answer)
    arrays = [
        pa.array([None if row[i] is None else decoders[i](row[i]) for row in found], arrow_type(c.type))
        for i, c in enumerate(schema.columns)
    ]
    return pa.Table.from_arrays(arrays, names=[c.name for c in schema.columns])
