"""Pages of rows from the database as Arrow batches of serialised values, without a Python object a value.

The frame of a result has for each row its values, each after its length (native protocol version 4, 4.2.5.2).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numba
import numpy as np
import pyarrow as pa
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Session
from cassandra.policies import RetryPolicy
from cassandra.protocol import ResultMessage, _ProtocolHandler, read_int  # type: ignore[attr-defined]
from cassandra.query import PreparedStatement

from writetime.database import DRIVER_FAULTS, DatabaseUnreachable

PAGE_ROWS = 5000


class _PageResult(ResultMessage):
    def recv_results_rows(
        self, f: Any, protocol_version: int, user_type_map: Any, result_metadata: Any, column_encryption_policy: Any
    ) -> None:
        del protocol_version, column_encryption_policy
        self.recv_results_metadata(f, user_type_map)
        described = self.column_metadata or result_metadata or ()
        self.column_names = [d[2] for d in described]
        self.column_types = [d[3] for d in described]
        rows = read_int(f)
        self.parsed_rows = page(self.column_names, rows, f.read())


class _PageProtocol(_ProtocolHandler):
    message_types_by_opcode = _ProtocolHandler.message_types_by_opcode | {_PageResult.opcode: _PageResult}


def page(names: Sequence[str], rows: int, body: bytes) -> pa.RecordBatch:
    """Return the rows of a result as columns of serialised values, null where a value is."""
    offsets, valid, data = _columns(np.frombuffer(body, np.uint8), rows, len(names))
    arrays = []
    for i in range(len(names)):
        present = None if valid[i].all() else pa.py_buffer(np.packbits(valid[i], bitorder="little"))
        content = pa.py_buffer(data[offsets[i, 0] : offsets[i, rows]])
        ends = pa.py_buffer((offsets[i] - offsets[i, 0]).astype(np.int32))
        arrays.append(pa.Array.from_buffers(pa.binary(), rows, [present, ends, content]))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


@numba.njit(cache=True, nogil=True)
def _columns(body: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Put the values of each column side by side; return where each starts, whether it is there, and all bytes."""
    starts = np.empty((columns, rows), np.int64)
    offsets = np.zeros((columns, rows + 1), np.int64)
    valid = np.empty((columns, rows), np.bool_)
    p = 0
    for row in range(rows):
        for column in range(columns):
            if p + 4 > len(body):
                raise ValueError("a page of rows is cut off")
            length = 0
            for i in range(4):
                length = length << 8 | body[p + i]
            if length >= 1 << 31:
                length = -1
            p += 4
            valid[column, row] = length >= 0
            length = max(length, 0)
            if p + length > len(body):
                raise ValueError("a page of rows is cut off")
            starts[column, row] = p
            offsets[column, row + 1] = length
            p += length
    data = np.empty(p, np.uint8)
    end = 0
    for column in range(columns):
        offsets[column, 0] = end
        for row in range(rows):
            length = offsets[column, row + 1]
            start = starts[column, row]
            for i in range(length):
                data[end + i] = body[start + i]
            end += length
            offsets[column, row + 1] = end
    return offsets, valid, data[:end]


class Pages:
    """Reads by prepared statements through a session that belongs to this alone. Reading is safe to repeat, so the
    driver may do so."""

    def __init__(self, session: Session) -> None:
        session.client_protocol_handler = _PageProtocol
        session.default_fetch_size = PAGE_ROWS
        self._profile = session.execution_profile_clone_update(
            EXEC_PROFILE_DEFAULT, row_factory=lambda _, found: [found], retry_policy=RetryPolicy()
        )
        self._session = session

    def prepare(self, query: str, consistency: int | None = None) -> PreparedStatement:
        """Prepare a query, of the settings' consistency if no other is named.

        In a cluster with one node, QUORUM becomes ONE: ScyllaDB creates `system_distributed` with replication factor 3
        there too (`db/system_distributed_keyspace.cc`), so a quorum never answers. scylla-cdc-java does the same
        (`Driver3MasterCQL.computeCL`).
        """
        statement: Any = self._session.prepare(query)
        if consistency == ConsistencyLevel.QUORUM and self._has_one_node():
            consistency = ConsistencyLevel.ONE
        statement.consistency_level = consistency
        statement.is_idempotent = True
        return statement

    def _has_one_node(self) -> bool:
        assert self._session.cluster is not None
        return len(self._session.cluster.metadata.all_hosts()) == 1

    def start(self, statement: PreparedStatement, values: Sequence[Any]) -> "Reading":
        """Send a query, and do not wait for its answer."""
        return Reading(self._session.execute_async(statement, values, execution_profile=self._profile), statement)

    def rows(self, statement: PreparedStatement, values: Sequence[Any]) -> pa.Table:
        """Return all rows that answer a query."""
        return pa.Table.from_batches(self.start(statement, values))


class Reading:
    """The pages that answer one query; the next one is asked for while one is looked at."""

    def __init__(self, future: Any, statement: PreparedStatement) -> None:
        self._future = future
        self._statement = statement

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        more = True
        while more:
            try:
                (found,) = self._future.result().current_rows
            except DRIVER_FAULTS as e:
                raise DatabaseUnreachable(
                    f"the database did not answer `{self._statement.query_string}`: {e}"
                ) from None
            more = self._future.has_more_pages
            if more:
                self._future.start_fetching_next_page()
            yield found
