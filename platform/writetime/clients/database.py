"""Connections to the database, Apache Cassandra or ScyllaDB, and the schema files that the platform applies to it."""

import hashlib
import json
import logging
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from string import Template

from cassandra import (
    ConsistencyLevel,
    DriverException,
    InvalidRequest,
    RequestValidationException,
    UnresolvableContactPoints,
    protocol,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.connection import ConnectionException
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    HostDistance,
    TokenAwarePolicy,
)
from cassandra.pool import Host
from cassandra.protocol import ErrorMessage

from writetime.clients import tls
from writetime.clients.reconnection import ReconnectingCluster
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.core.server_settings import Cassandra
from writetime.core.waiting import wait_until

log = logging.getLogger(__name__)

# The newest protocol version of ScyllaDB. Cassandra has 5, but its checksums of every message are slow in this driver.
PROTOCOL_VERSION = 4
COUNT_RANGES = 128
_CONNECT_SECONDS = 10
_PROBE_SECONDS = 1.0
# Settings for the size of a mutation: how many of the largest ones they have room for, and the unit without a name.
_SIZES = {
    "max_mutation_size": (1, 1),
    "max_mutation_size_in_kb": (1, 1 << 10),
    "commitlog_segment_size": (2, 1),
    "commitlog_segment_size_in_mb": (2, 1 << 20),
}
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r'"?(\d+)(B|KiB|MiB|GiB)?')
_AGREEMENT_SECONDS = 1
# All exceptions of the driver when the database does not answer, or answers with an error: they have no common base,
# and some answers ("overloaded", as of a node that shuts down) come as the message itself.
DRIVER_FAULTS = (DriverException, ErrorMessage, NoHostAvailable, ConnectionException)
# Those of them that a request gets again. The class of the message has no common base with the other one.
_REFUSALS = (RequestValidationException, protocol.RequestValidationException)  # type: ignore[attr-defined]
# Cassandra refuses a request so if it cannot read its tables of roles and rights (`CassandraAuthorizer`, `Roles`).
_UNREADABLE_RIGHTS = "Unable to perform authorization"
# Pauses between attempts to connect to a node that is down: the first, and the longest.
RECONNECT_SECONDS = (0.5, 2.0)
_REMEDY = "start the embedded servers with `writetime up`, or set cassandra.contact_points, port and credentials"


class DatabaseUnreachable(Transient):
    """No contact point answers or accepts the login; or one no longer answers."""


def answers(settings: Settings) -> bool:
    """Return whether a contact point has an open port. The driver would take much longer to report that none has."""
    return any(_is_open(point, settings.cassandra.port) for point in settings.cassandra.contact_points)


def _is_open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _PROBE_SECONDS):
            return True
    except OSError:
        return False


@contextmanager
def connect(settings: Settings) -> Iterator[Session]:
    """Open a session: token-aware, at the consistency of the settings, and without the driver's retries.

    The driver must not retry by itself: only the caller can decide which statement may be sent twice. Writes without a
    write time of their own get it from the node that coordinates them, because the clock of this machine may be wrong.
    Raises DatabaseUnreachable: no contact point answers, or the credentials or certificates are rejected.
    """
    cassandra = settings.cassandra
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(cassandra.local_datacenter)),
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=getattr(ConsistencyLevel, cassandra.consistency),
        serial_consistency_level=getattr(ConsistencyLevel, cassandra.serial_consistency),
        request_timeout=cassandra.request_timeout_seconds,
    )
    if cassandra.tls_ca_file is not None and not cassandra.tls_check_addresses:
        log.warning("any certificate of %s is accepted for a node: tls_check_addresses is off", cassandra.tls_ca_file)
    # A fault in a file of certificates is reported as such. A connection does not report it.
    _tls(cassandra)
    cluster: Cluster | None = None
    try:
        try:
            # This resolves the names of the contact points.
            cluster = ReconnectingCluster(
                cassandra.contact_points,
                lambda: _tls(cassandra),
                port=cassandra.port,
                execution_profiles={EXEC_PROFILE_DEFAULT: profile},
                auth_provider=_credentials(cassandra),
                protocol_version=PROTOCOL_VERSION,
                # A request of more than 4,096 bytes is sent in pieces. The last piece would wait for the
                # acknowledgement of the earlier ones, which the peer delays by 40 ms.
                sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
                # Without a limit: by default the driver gives up a node after 64 attempts, and never connects to it
                # again.
                reconnection_policy=ExponentialReconnectionPolicy(*RECONNECT_SECONDS, max_attempts=sys.maxsize),
                connect_timeout=_CONNECT_SECONDS,
                # The default is two seconds, and a busy node may take longer to return its schema.
                control_connection_timeout=_CONNECT_SECONDS,
                # By default it reads the schemas of all tables when it connects, and again after each change.
                schema_metadata_enabled=False,
            )
            session = cluster.connect()
            session.use_client_timestamp = False
        except (NoHostAvailable, UnresolvableContactPoints) as e:
            points = ", ".join(f"{p}:{cassandra.port}" for p in cassandra.contact_points)
            reason = "their names cannot be resolved" if isinstance(e, UnresolvableContactPoints) else driver_reason(e)
            raise DatabaseUnreachable(
                f"no database answers at {points} ({reason}); {tls.remedy(reason, 'cassandra') or _REMEDY}"
            ) from None
        find_replicas(session, cassandra.keyspace)
        yield session
    finally:
        if cluster is not None:
            cluster.shutdown()


def find_replicas(session: Session, keyspace: str) -> None:
    """Let prepared statements on this keyspace go to a replica of their partition at once.

    The driver computes replicas from the keyspace's replication, which this call reads once. `connect` does this for
    the platform's keyspace. Statements on other keyspaces go to any node, which forwards them.
    """
    assert session.cluster is not None
    try:
        session.cluster.refresh_keyspace_metadata(keyspace, max_schema_agreement_wait=0)
    except DRIVER_FAULTS as e:
        log.info(
            "statements on keyspace %s may be sent to nodes without its data, because its replication cannot be read: "
            "%s",
            keyspace,
            e,
        )


def node_of(session: Session, address: str | None) -> Host:
    """Return the node of this machine, by its address, or the only node. It is connected, if it answers. Raises
    WritetimeError: there are several, or none with this address.
    """
    assert session.cluster is not None
    assert session.cluster.metadata is not None
    # `session.hosts` has the nodes that were known when it was opened.
    hosts: list[Host] = session.cluster.metadata.all_hosts()
    found = hosts if address is None and len(hosts) == 1 else [h for h in hosts if h.address == address]
    if not found:
        known = ", ".join(sorted(str(h.address) for h in hosts))
        raise WritetimeError(f"capture.node must name the node of this machine, one of {known}")
    # A session opens as soon as one node is connected; it reports the others as down until they are.
    wait_until(lambda: any(pool.host == found[0] for pool in session.get_pools()), _CONNECT_SECONDS, 0.02)
    return found[0]


def local_nodes(session: Session) -> list[Host]:
    """Return the nodes that the local data center has now. A session sends queries to no others. (`session.hosts` has
    the nodes that were known when it was opened.)
    """
    cluster = session.cluster
    assert cluster is not None
    ignored = HostDistance.IGNORED
    return [host for host in cluster.metadata.all_hosts() if cluster.profile_manager.distance(host) != ignored]


def nodes_agree(session: Session) -> bool:
    """Return whether all nodes that are up have the same schema.

    A node that was down while a table was altered may take a minute to get the schema, and refuses the new columns
    until then (Cassandra's `MigrationCoordinator` delays the request for the schema by 60 s).
    """
    try:
        assert session.cluster is not None
        return bool(session.cluster.control_connection.wait_for_schema_agreement(wait_time=_AGREEMENT_SECONDS))
    except DRIVER_FAULTS:
        return False


def apply_schema(settings: Settings) -> list[str]:
    """Apply the schema files that this database does not have yet, in the order of their numbers; return their names.

    A file that was applied but not recorded, because of a crash, is applied again safely: each statement has IF NOT
    EXISTS, or adds a column, for which Cassandra 4.0 does not have IF NOT EXISTS. Raises WritetimeError: an applied
    file has been changed since.
    """
    keyspace = settings.cassandra.keyspace
    replication = json.dumps(settings.cassandra.replication).replace('"', "'")
    applied = []
    with connect(settings) as session:
        known: dict[str, str] = {}
        rows = session.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", [keyspace])
        if "schema_files" in {row.table_name for row in rows}:
            known = dict(iter(session.execute(f"SELECT name, sha256 FROM {keyspace}.schema_files")))
        for path in sorted(schema_folder().glob("*.cql")):
            text = path.read_text()
            digest = hashlib.sha256(text.encode()).hexdigest()
            if path.name in known:
                if known[path.name] != digest:
                    raise WritetimeError(
                        f"{path.name} was changed after it was applied to keyspace {keyspace}; restore the file and "
                        "put the change into a new one with the next number"
                    )
                continue
            for statement in _statements(Template(text).substitute(keyspace=keyspace, replication=replication)):
                _apply(session, statement)
            session.execute(
                f"INSERT INTO {keyspace}.schema_files (name, sha256, applied_at) VALUES (%s, %s, %s)",
                [path.name, digest, datetime.now(UTC)],
            )
            applied.append(path.name)
    return applied


def _apply(session: Session, statement: str) -> None:
    try:
        session.execute(statement, timeout=60)
    except InvalidRequest:
        if not _is_added(session, statement):
            raise


def largest_mutation(session: Session) -> int | None:
    """Return the largest number of bytes that a node takes in one mutation, None if it does not show its settings.

    It is `max_mutation_size`, by default half of a segment of the commit log. A node answers a larger conditional
    write with a timeout, each time.
    """
    for table in ("system_views.settings", "system.config"):
        try:
            names = ", ".join(f"'{name}'" for name in _SIZES)
            rows = session.execute(f"SELECT name, value FROM {table} WHERE name IN ({names})")
        except _REFUSALS:
            continue
        sizes = {
            r.name: int(m[1]) * (_UNITS.get(m[2]) or _SIZES[r.name][1])
            for r in rows
            if (m := _SIZE.match(str(r.value)))
        }
        limits = [size // _SIZES[name][0] for name, size in sizes.items() if size]
        if limits:
            return min(limits)
    return None


def count_rows(session: Session, table: str, partition_key: str) -> int:
    """Count the rows of `keyspace.table` by token ranges, so that a large table does not time out. Raises
    WritetimeError: a range could not be counted.
    """
    count = session.prepare(
        f"SELECT count(*) FROM {table} WHERE token({partition_key}) >= ? AND token({partition_key}) <= ?"
    )
    step = 2**64 // COUNT_RANGES
    starts = range(-(2**63), 2**63, step)
    answers = execute_concurrent_with_args(
        session, count, [(start, start + step - 1) for start in starts], concurrency=8
    )
    total = 0
    for start, (success, answer) in zip(starts, answers, strict=True):
        if not success:
            raise WritetimeError(f"{table} cannot be counted from token {start} on: {answer}")
        total += next(iter(answer))[0]
    return total


def is_without_answer(fault: BaseException) -> bool:
    """Return whether a fault is one of `DRIVER_FAULTS` that shows that the database does not answer at the moment."""
    return isinstance(fault, DRIVER_FAULTS) and (not isinstance(fault, _REFUSALS) or _UNREADABLE_RIGHTS in str(fault))


def driver_reason(fault: Exception) -> str:
    """Return the reason in one of `DRIVER_FAULTS`; if no node answers, the reason of each."""
    if not isinstance(fault, NoHostAvailable):
        return str(fault)
    reasons = fault.errors.values() if isinstance(fault.errors, dict) else fault.errors or ()
    return "; ".join(dict.fromkeys(map(str, reasons))) or "no host"


def no_answer(session: Session, fault: Exception) -> str:
    """Return the nodes that a session asked, and the reason in one of `DRIVER_FAULTS`, which may name no node."""
    assert session.cluster is not None
    return f"asked at {', '.join(map(str, session.cluster.contact_points))}: {driver_reason(fault)}"


def timestamp_as_written(read: datetime) -> datetime:
    """Return a `timestamp` value as the database has it, in UTC.

    The driver decodes it through a float, which changes a time in a far year by some microseconds.
    """
    rounded = read + timedelta(microseconds=500)
    return rounded.replace(microsecond=rounded.microsecond // 1000 * 1000, tzinfo=UTC)


def schema_folder() -> Path:
    """Return the folder of the numbered schema files: in the installed package, else in the source tree."""
    installed = Path(__file__).parents[1] / "cql"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "cql"


def _is_added(session: Session, statement: str) -> bool:
    """Return whether a statement adds a column that exists."""
    added = re.fullmatch(r"ALTER TABLE (\w+)\.(\w+) ADD (\w+) \w+(?:<[\w<>, ]+>)?(?: static)?", statement)
    query = "SELECT type FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s AND column_name = %s"
    return added is not None and session.execute(query, added.groups()).one() is not None


def _statements(text: str) -> list[str]:
    without_comments = re.sub(r"--.*", "", text)
    return [s.strip() for s in without_comments.split(";") if s.strip()]


def _credentials(cassandra: Cassandra) -> PlainTextAuthProvider | None:
    if cassandra.username is None or cassandra.password is None:
        return None
    return PlainTextAuthProvider(cassandra.username, cassandra.password.get_secret_value())


def _tls(cassandra: Cassandra) -> ssl.SSLContext | None:
    context = tls.client_context("cassandra", cassandra)
    if context is not None:
        context.check_hostname = cassandra.tls_check_addresses
    return context
