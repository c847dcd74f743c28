"""Queries that the database executes as of a chosen second, by which it judges what has expired."""

import io
from typing import Any

from cassandra.cluster import ResultSet, Session
from cassandra.protocol import QueryMessage
from cassandra.query import SimpleStatement

from writetime.clients.untyped_rows import UntypedProtocol

_NOW_IN_SECONDS = 0x100


class _QueryAt(QueryMessage):
    """A query that the node executes as of a second (protocol v5: the flag `now_in_seconds`, the last value)."""

    second = 0

    def _write_query_params(self, f: Any, protocol_version: int) -> None:
        inner = io.BytesIO()
        super()._write_query_params(inner, protocol_version)
        body = bytearray(inner.getvalue())
        # The consistency level comes first, in two bytes, then the flags.
        flags = int.from_bytes(body[2:6], "big") | _NOW_IN_SECONDS
        body[2:6] = flags.to_bytes(4, "big")
        f.write(bytes(body) + self.second.to_bytes(4, "big"))


class ProtocolAt(UntypedProtocol):
    """Takes the second, and the default write time, of a statement from its custom payload. The session's protocol
    version is 5.
    """

    @classmethod
    def encode_message(cls, msg: Any, *arguments: Any, **options: Any) -> bytes:
        payload = getattr(msg, "custom_payload", None)
        if payload and "second" in payload:
            msg.__class__ = _QueryAt
            msg.second = payload["second"]
            msg.timestamp = payload["timestamp"]
            msg.custom_payload = None
        return super().encode_message(msg, *arguments, **options)


def rows_at(session: Session, query: str, second: int) -> ResultSet:
    """Return the rows of a query as of a second, as bytes, by a session with the protocol `ProtocolAt`."""
    payload: Any = {"second": second, "timestamp": None}
    statement = SimpleStatement(query, fetch_size=None)  # type: ignore[arg-type]
    return session.execute(statement, custom_payload=payload)
