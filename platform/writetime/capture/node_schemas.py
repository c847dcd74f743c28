"""The present and past schemas of a node, by table id.

A commit log names tables by their ids and columns by their names, without types. `system_schema` is read again whenever
the node's schema version has changed. The version is read after a segment's trusted offset, and before the data below
that offset is decoded. So no write is decoded with a schema older than its own. While nothing is written, the version
is read from time to time, and after a schema event of the node. Older schemas are kept in the state folder
(`schemas/<table id>.json`), to read tables and columns that were dropped.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import numpy as np
from cassandra.cluster import Cluster, Session
from cassandra.connection import Connection
from cassandra.pool import Host

from writetime.capture.change_publisher import check_publishable
from writetime.capture.state_files import read_json, write_json
from writetime.clients.database import DRIVER_FAULTS, node_of
from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.core.instants import parse_instant
from writetime.schema.stored import from_json, to_json
from writetime.schema.system import Row, TableRows, from_rows, rows_of_tables, settled_rows
from writetime.schema.table import SchemaHistory, TableSchema
from writetime.schema.types import quote_name
from writetime.storage.batch import BatchMaker
from writetime.storage.plan import Plan

log = logging.getLogger(__name__)

# The time that a node has to accept a listener.
_ANSWER_SECONDS = 10.0
_ALTERED = "SELECT keyspace_name, table_name, WRITETIME(fast_path) AS at FROM system_schema.tables"
# The options in the description of a table that Accord does not write to (`TableParams.appendCqlTo`).
_WITHOUT_ACCORD = ("AND transactional_mode = 'off'", "AND transactional_migration_from = 'none'")


class Unreachable(Transient):
    """The node does not answer at the moment."""


class SchemaEvents:
    """Receives schema events from one of the nodes that `hosts` returns. Events are lost while there is no connection,
    so callers must also poll. It tries to connect at most every `again_seconds`.
    """

    def __init__(self, cluster: Cluster, hosts: Callable[[], Sequence[Host]], again_seconds: float = 10.0) -> None:
        self._again_seconds = again_seconds
        self._cluster = cluster
        self._hosts = hosts
        self._connection: Connection | None = None
        self._next_try = 0.0
        self._event = threading.Event()

    def heard(self) -> bool:
        """Return whether there was an event since the last call."""
        if self._connection is None or self._connection.is_closed or self._connection.is_defunct:
            self._listen()
        if not self._event.is_set():
            return False
        self._event.clear()
        return True

    def close(self) -> None:
        """Stop listening."""
        if self._connection is not None:
            self._connection.close()

    def _listen(self) -> None:
        """Connect, unless that was tried recently. The driver's own connection does not pass on its events."""
        if time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + self._again_seconds
        hosts = sorted(self._hosts(), key=lambda host: not host.is_up)
        if not hosts:
            return
        host = hosts[0]
        try:
            connection = self._cluster.connection_factory(host.endpoint)
            try:
                connection.register_watcher("SCHEMA_CHANGE", lambda _: self._event.set(), _ANSWER_SECONDS)
            except BaseException:
                connection.close()
                raise
        except (OSError, *DRIVER_FAULTS) as e:
            log.warning("events of node %s are not received, so schemas are only polled: %s", host.address, e)
        else:
            self._connection = connection


class Node:
    """The node whose segments are read, by CQL. Only this node answers the queries."""

    def __init__(self, session: Session, address: str | None) -> None:
        assert session.cluster is not None
        self._session = session
        self._configured = address
        self._host = node_of(session, address)
        self.events = SchemaEvents(session.cluster, lambda: [self._host])

    @property
    def address(self) -> str:
        """The node's address."""
        return str(self._host.address)

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query. Raise Unreachable if the node does not answer."""
        try:
            self._follow_address()
            return [row._asdict() for row in self._session.execute(query, host=self._host)]
        except WritetimeError as e:
            raise Unreachable(f"node {self._host.address} is not in the cluster: {e}") from None
        except DRIVER_FAULTS as e:
            raise Unreachable(f"node {self._host.address} does not answer: {e}") from None

    def _follow_address(self) -> None:
        """Use the only node's new address, if it has another one by now."""
        assert self._session.cluster is not None
        assert self._session.cluster.metadata is not None
        if self._session.cluster.metadata.get_host(self._host.endpoint) is None:
            self._host = node_of(self._session, self._configured)

    def ring(self, keyspace: str) -> "Ring":
        """Return the replicas of a keyspace, as the node knows them. Raise Unreachable if it does not answer."""
        cluster = self._session.cluster
        assert cluster is not None
        try:
            cluster.refresh_keyspace_metadata(keyspace, max_schema_agreement_wait=0)
        except DRIVER_FAULTS as e:
            raise Unreachable(f"the replication of {keyspace} cannot be read: {e}") from None
        token_map = cluster.metadata.token_map
        tokens = [] if token_map is None else token_map.ring
        replicas = [] if token_map is None else [token_map.get_replicas(keyspace, token) for token in tokens]
        if not replicas or not all(replicas):
            raise Unreachable(f"the replicas of {keyspace} are not known")
        orders = tuple(tuple(str(host.host_id) for host in hosts) for hosts in replicas)
        return Ring(np.array([token.value for token in tokens], np.int64), orders)

    def pairs(self, query: str) -> dict[str, str | None]:
        """Return the rows of a query for names and values, as a dictionary."""
        return {row["name"]: row["value"] for row in self.rows(query)}


@dataclass(frozen=True)
class Ring:
    """The tokens at which the ranges of a keyspace end, in order, and the host ids of each range's replicas, in the
    order of the database.
    """

    ends: np.ndarray
    orders: tuple[tuple[str, ...], ...]

    def of(self, tokens: np.ndarray) -> list[tuple[str, ...]]:
        """Return the replicas of each token."""
        # The range after the last end goes on to the first one.
        return [self.orders[i] for i in np.searchsorted(self.ends, tokens) % len(self.ends)]


@dataclass(frozen=True)
class NodeTable:
    """A present or past table of the node, and the times (microseconds) at which it was first seen, and first seen with
    `cdc = true` (0 if it never was). `schema` is None if it cannot be read because of a `fault`.
    """

    id: UUID
    keyspace: str
    name: str
    captured: bool
    schema: TableSchema | None
    fault: str = ""
    seen_at: int = 0
    captured_at: int = 0

    @property
    def full_name(self) -> str:
        """The keyspace and the name."""
        return f"{self.keyspace}.{self.name}"


@dataclass(frozen=True)
class NodeTables:
    """The present and past tables of a node, by id. `live` are its present tables, `views` its materialised views,
    `not_durable` its keyspaces with `durable_writes = false`, and `transactional` the captured tables that are written
    to by Accord's transactions.
    """

    by_id: Mapping[UUID, NodeTable]
    live: frozenset[UUID] = frozenset()
    views: frozenset[UUID] = frozenset()
    not_durable: frozenset[str] = frozenset()
    transactional: frozenset[UUID] = frozenset()

    @property
    def with_cdc(self) -> list[NodeTable]:
        """The tables with `cdc = true`, also those that were dropped."""
        return [t for t in self.by_id.values() if t.captured]

    @property
    def captured(self) -> list[TableSchema]:
        """The schemas of the tables whose changes are published. This includes a dropped table, unless another table
        has its name now.
        """
        names = {t.full_name for t in self.by_id.values() if t.id in self.live}
        tables = [t for t in self.with_cdc if t.id in self.live or t.full_name not in names]
        return [t.schema for t in tables if t.schema is not None]

    @property
    def known(self) -> list[TableSchema]:
        """The schemas of all tables that can be read."""
        return [t.schema for t in self.by_id.values() if t.schema is not None]

    @property
    def faults(self) -> dict[str, str]:
        """Why tables that the node captures now are not published, by their names."""
        return {t.full_name: t.fault for t in self.with_cdc if t.schema is None and t.id in self.live}

    def since(self, table_id: UUID) -> int:
        """Return a time (microseconds). Changes that were captured under this name before it belong to an earlier
        table. It is 0 if it is not known.
        """
        table = self.by_id[table_id]
        is_second = any(t.id != table_id and t.full_name == table.full_name for t in self.by_id.values())
        return table.seen_at if is_second else 0

    def captured_with(self, table_id: UUID | None) -> list[UUID] | None:
        """Return the captured tables that a mutation may write to if it writes to this table. These are the tables of
        the same keyspace. Return None if the keyspace is not known.
        """
        table = None if table_id is None else self.by_id.get(table_id)
        if table is None:
            return None
        return [t.id for t in self.with_cdc if t.keyspace == table.keyspace]

    def unreadable(self, table_id: UUID) -> str | None:
        """Return why a mutation that writes to a table without a schema may hide changes; None if it cannot.

        All writes of a mutation are to one keyspace. So if that keyspace has no captured table, nothing is hidden.
        """
        if table_id in self.views:
            return None
        table = self.by_id.get(table_id)
        if table is None:
            return f"the schema of table {table_id} is unknown: the table was dropped before this agent read its schema"
        if not self.captured_with(table_id):
            return None
        return f"table {table.full_name} cannot be read: {table.fault}"


class Schemas(Protocol):
    """The source of a decoder's schemas."""

    @property
    def tables(self) -> NodeTables:
        """The tables as of the last `refresh`."""
        ...

    def refresh(self, *, always: bool = False) -> bool:
        """Read newer schemas, `always` or if there may be some; return whether there are."""
        ...


@dataclass(frozen=True)
class FixedSchemas:
    """Schemas that were read elsewhere."""

    tables: NodeTables

    def refresh(self, *, always: bool = False) -> bool:
        """Return False: the schemas never change."""
        del always
        return False


@dataclass(frozen=True)
class _Mode:
    """Whether Accord writes to a table whose options were written at a time (microseconds), as it was described. The
    schema version was `first_seen` with this time, and `described` with this mode.
    """

    altered: int
    is_transactional: bool
    first_seen: UUID
    described: UUID

    @property
    def is_settled(self) -> bool:
        """Whether the description is not older than the time: a node may have written its `system_schema`, and not yet
        apply it.
        """
        return self.described != self.first_seen


class SchemaWatch:
    """The tables of a node, as of its schema version, and those that are kept in a folder."""

    def __init__(self, folder: Path, node: Node) -> None:
        self._node = node
        self._folder = folder / "schemas"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._version: UUID | None = None
        self._history = SchemaHistory()
        self._stored: dict[UUID, list[dict[str, Any]]] = {}
        self._tables: dict[UUID, NodeTable] = {}
        # The rows that gave the present schemas. A schema change of one table reads the rows of all tables again.
        self._taken: dict[UUID, TableRows] = {}
        self._modes: dict[UUID, _Mode] = {}
        for path in sorted(self._folder.glob("*.json")):
            try:
                self._restore(UUID(path.stem), read_json(path) or {})
            except Exception as e:
                # The schema of an existing table is read from the node. Writes to other tables are set aside.
                log.error("%s cannot be read, so its schemas are not known: %s", path, reason_of(e))
        self.tables = NodeTables(dict(self._tables))
        # Tables whose `cdc` was switched, until the agent records this.
        self.switched: list[NodeTable] = []

    def refresh(self, *, always: bool = False) -> bool:
        """Read the schemas if the node's schema version has changed; return whether any is new. Raise Unreachable if
        the node does not answer.
        """
        version = self._node.rows("SELECT schema_version FROM system.local")[0]["schema_version"]
        if version == self._version and not always:
            return False
        rows = settled_rows(self._node.rows, views="id")
        keyspaces = self._node.rows("SELECT keyspace_name, durable_writes FROM system_schema.keyspaces")
        before = self.tables
        for of_table in rows_of_tables(rows):
            self._take(of_table)
        live, views = (frozenset(row["id"] for row in rows[name]) for name in ("tables", "views"))
        not_durable = frozenset(row["keyspace_name"] for row in keyspaces if row["durable_writes"] is False)
        self._modes = self._read_modes(rows["tables"], version)
        transactional = frozenset(table_id for table_id, mode in self._modes.items() if mode.is_transactional)
        self.tables = NodeTables(dict(self._tables), live, views, not_durable, transactional)
        self._version = version
        return (before.by_id, before.live) != (self.tables.by_id, live)

    def _read_modes(self, rows: Sequence[Row], version: UUID) -> dict[UUID, _Mode]:
        """Return the modes of the captured tables with Accord, of which only those that were altered are described.

        `system_schema` does not have the table's mode. Its `fast_path` is null unless the node had Accord enabled when
        the table was created or altered, and is written each time (`SchemaKeyspace.addTableParamsToRowBuilder`), and at
        each start of the node.
        """
        wanted = {_names(row): row["id"] for row in rows if row.get("cdc") and row.get("fast_path") is not None}
        if not wanted:
            return {}
        # Before the descriptions: they may be newer, but not older for long.
        times = self._node.rows(_ALTERED)
        altered = {_names(row): row["at"] for row in times}
        found = {}
        for names, table_id in wanted.items():
            at, known = altered.get(names) or 0, self._modes.get(table_id)
            if known is None or known.altered != at or not (known.is_settled or known.described == version):
                first_seen = known.first_seen if known and known.altered == at else version
                known = _Mode(at, self._is_transactional(names), first_seen, version)
            found[table_id] = known
        return found

    def _is_transactional(self, names: tuple[str, str]) -> bool:
        """Return whether Accord executes writes to a table, or some of them, as while the table migrates to or from
        it.
        """
        described, *_indexes = self._node.rows(f"DESCRIBE TABLE {'.'.join(map(quote_name, names))}")
        return not all(option in described["create_statement"] for option in _WITHOUT_ACCORD)

    def _take(self, rows: TableRows) -> None:
        """Read the schema of a table, unless its rows are those that were read last and gave a schema."""
        row = rows[0]
        table_id, captured = row["id"], bool(row.get("cdc"))
        if self._taken.get(table_id) == rows:
            return
        old = self._tables.get(table_id)
        schema, fault = None, ""
        try:
            found = from_rows(*rows)
            self._history.add(found)
            schema = self._history.get(table_id)
            if schema is not None:
                _check(schema, captured=captured)
        except MemoryError:
            raise
        except Exception as e:
            # A fault in the schema of one table stops no other table.
            schema, fault = None, reason_of(e)
        now = time.time_ns() // 1000
        seen_at, captured_at = (old.seen_at, old.captured_at) if old else (now, 0)
        names = row["keyspace_name"], row["table_name"]
        since = captured_at or (now if captured else 0)
        table = NodeTable(table_id, *names, captured, schema, fault, seen_at, since)
        if table != old:
            self._note(table, old)
        if schema is None:
            # The rows may become those from before the fault again.
            self._taken.pop(table_id, None)
        else:
            self._taken[table_id] = rows

    def _note(self, table: NodeTable, old: NodeTable | None) -> None:
        """Store a table that is new or has changed, and log the effect."""
        # The database's own tables are never dropped, so they need not be kept here.
        if table.schema is not None and not table.keyspace.startswith("system"):
            # Stored before the table is known: if the disk is full, the next call stores it.
            versions, schema = self._stored.setdefault(table.id, []), to_json(table.schema)
            if not versions or versions[-1]["table"] != schema:
                versions.append({"seen_at": datetime.now(UTC).isoformat(), "table": schema})
            content = {"captured": table.captured, "captured_at": table.captured_at, "versions": versions}
            write_json(self._folder / f"{table.id}.json", content)
        self._tables[table.id] = table
        if old is not None and old.captured != table.captured:
            self.switched.append(table)
        if table.captured and table.fault:
            log.error("table %s cannot be captured: %s", table.full_name, table.fault)
        elif table.captured:
            log.info("table %s is captured", table.full_name)
        elif old is not None and old.captured:
            log.warning("table %s has cdc = false now: new writes to it are not captured", table.full_name)

    def _restore(self, table_id: UUID, stored: dict[str, Any]) -> None:
        for version in stored["versions"]:
            self._history.add(from_json(version["table"]))
        schema = self._history.get(table_id)
        assert schema is not None
        _check(schema, captured=stored["captured"])
        self._stored[table_id] = stored["versions"]
        seen_at = parse_instant(stored["versions"][0]["seen_at"])
        names, captured = (schema.keyspace, schema.name), stored["captured"]
        self._tables[table_id] = NodeTable(table_id, *names, captured, schema, "", seen_at, stored["captured_at"])


def _names(row: Row) -> tuple[str, str]:
    return row["keyspace_name"], row["table_name"]


def _check(schema: TableSchema, *, captured: bool) -> None:
    """Build once the objects that are needed for reading and publishing changes. A failure, with an error of any kind,
    becomes a fault of the table.
    """
    BatchMaker(Plan(schema))
    if captured:
        check_publishable(schema)
