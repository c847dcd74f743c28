"""Reads pages of rows from the database as Arrow batches of serialised values.

Temporary failures are retried here. ScyllaDB answers "Replica(s) failed to execute read" while tablets are split. A
node that starts, stops or is busy answers that it is unavailable or overloaded, or with a timeout.
"""

import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from cassandra import ConsistencyLevel, InvalidRequest, OperationTimedOut, RequestExecutionException, protocol
from cassandra.cluster import EXEC_PROFILE_DEFAULT, NoHostAvailable, ResultSet, Session
from cassandra.connection import ConnectionException
from cassandra.policies import RetryPolicy
from cassandra.query import PreparedStatement

from writetime.clients.database import DRIVER_FAULTS, DatabaseUnreachable, driver_reason
from writetime.clients.untyped_pages import PageProtocol, as_page

log = logging.getLogger(__name__)

PAGE_ROWS = 5000
# The longest wait before each retry, in seconds.
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
# No retry begins later than this after the first attempt, because a request that times out takes seconds itself.
_PATIENCE_SECONDS = 5.0
# A message names the table that was read, and not its hundreds of columns.
_COLUMNS = re.compile("^SELECT .{40,}? FROM")
_PASSING = (
    # Unavailable, timeouts, and failures of replicas.
    RequestExecutionException,
    OperationTimedOut,
    NoHostAvailable,
    ConnectionException,
    # These answers have no separate exception: overloaded, bootstrapping, and errors inside the server.
    protocol.RequestExecutionException,  # type: ignore[attr-defined]
    protocol.ServerError,  # type: ignore[attr-defined]
)

_T = TypeVar("_T")


def retried(ask: Callable[[], _T], query: str) -> _T:
    """Query the database until it answers, with growing pauses, as long as its failures are temporary.

    Raises:
        InvalidRequest: the database rejects the query.
        DatabaseUnreachable: there was another failure, or one that did not pass in time. It names the query.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    pauses = iter(PAUSES)
    while True:
        try:
            return ask()
        except InvalidRequest:
            raise
        except DRIVER_FAULTS as e:
            pause = next(pauses, None)
            if pause is None or not isinstance(e, _PASSING) or time.monotonic() + pause > deadline:
                raise DatabaseUnreachable(f"the database did not answer `{query}`: {driver_reason(e)}") from None
            # During an outage, each read of each table has several such attempts.
            log.debug("the database did not answer `%s`: %s; retrying", query, e)
            time.sleep(random.uniform(pause / 2, pause))


class Pages:
    """Reads with prepared statements through its own session. Reading is safe to repeat, so the driver may do so."""

    def __init__(self, session: Session) -> None:
        session.client_protocol_handler = PageProtocol
        session.default_fetch_size = PAGE_ROWS
        self._profile = session.execution_profile_clone_update(
            EXEC_PROFILE_DEFAULT, row_factory=as_page, retry_policy=RetryPolicy()
        )
        self._session = session

    def prepare(self, query: str, consistency: int | None = None) -> PreparedStatement:
        """Prepare a query, with the settings' consistency if no other is given.

        In a cluster with one node, QUORUM becomes ONE: ScyllaDB creates `system_distributed` with replication factor 3
        there too (`db/system_distributed_keyspace.cc`), so a quorum never answers. scylla-cdc-java does the same
        (`Driver3MasterCQL.computeCL`).

        Raises:
            InvalidRequest: the database has no such table or column.
            DatabaseUnreachable: it does not answer.
        """
        statement: Any = retried(lambda: self._session.prepare(query), query)
        if consistency == ConsistencyLevel.QUORUM and self._has_one_node():
            consistency = ConsistencyLevel.ONE
        statement.consistency_level = consistency
        statement.is_idempotent = True
        return statement

    def _has_one_node(self) -> bool:
        assert self._session.cluster is not None
        return len(self._session.cluster.metadata.all_hosts()) == 1

    def start(self, statement: PreparedStatement, values: Sequence[Any]) -> "Reading":
        """Send a query without waiting for its answer."""
        return Reading(
            lambda page: self._session.execute_async(
                statement, values, execution_profile=self._profile, paging_state=page
            ),
            _COLUMNS.sub("SELECT ... FROM", str(statement.query_string)),
        )

    def rows(self, statement: PreparedStatement, values: Sequence[Any]) -> pa.Table:
        """Return all rows of a query."""
        return pa.Table.from_batches(self.start(statement, values))


class Reading:
    """The pages of one query. The next page is requested while one is used."""

    def __init__(self, send: Callable[[bytes | None], Any], query: str) -> None:
        """Send the query with `send`, which takes the place of the page to begin with."""
        self._send = send
        self._query = query
        self._page: bytes | None = None
        self._future: Any = send(None)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                answer = retried(self._answer, self._query)
            except InvalidRequest as e:
                raise DatabaseUnreachable(f"the database did not answer `{self._query}`: {e}") from None
            (found,) = answer.current_rows
            self._page = answer.paging_state
            if not self._page:
                yield found
                return
            self._future.start_fetching_next_page()
            yield found

    def only_page(self) -> pa.RecordBatch | None:
        """Return all rows if one page has them; None if there are more, or if the query failed: ScyllaDB answers with a
        server error if it has more partition keys than the server allows.
        """
        try:
            answer = self._answer()
        except DRIVER_FAULTS as e:
            log.debug("the database did not answer `%s`: %s; its streams are read alone", self._query, e)
            return None
        (found,) = answer.current_rows
        return None if answer.paging_state else found

    def _answer(self) -> ResultSet:
        """Wait for the requested page. If it failed, the next attempt requests it again."""
        future = self._future or self._send(self._page)
        self._future = None
        answer = future.result()
        self._future = future
        return answer
