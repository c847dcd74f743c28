"""Connections of the database driver that come back after each fault, however long the fault lasts.

The driver gives a node up in several cases. It never connects again after a login that was refused (in `pool.py`,
`on_exception` of both handlers of reconnections), or after a connect that timed out (`SimpleConvictionPolicy`). Races
between events leave a node marked up with a pool that is shut down, or marked down without a handler that connects to
it (`Cluster.on_down`, `on_up` and `on_add`). A control connection that comes back is closed at once (`finally` in
`_ReconnectionHandler.run`), so events are lost until the next heartbeat. And it resolves the names of contact points
only once, so it does not find a node that changed its address.
"""

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from cassandra import AuthenticationFailed
from cassandra.cluster import Cluster, Session
from cassandra.connection import Connection, ConnectionException, DefaultEndPoint, EndPoint
from cassandra.policies import ConvictionPolicy, HostDistance
from cassandra.pool import Host

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
"""The time between two checks of the connections."""
GIVEN_UP_SECONDS = 30.0
"""A node without a connection for this time counts as given up by the driver. It covers several of its attempts."""
_PAUSE_SECONDS = 0.5


class EveryFailureCounts(ConvictionPolicy):
    """Regards a node as down after each failed connection, so that the driver connects again."""

    def add_failure(self, connection_exc: Exception) -> bool:  # noqa: ARG002
        """Return True: by default, a timeout does not count."""
        return True

    def reset(self) -> None:
        """Nothing is counted."""


class ReconnectingCluster(Cluster):
    """A cluster of the driver that gives no node up. Names of contact points are resolved again while no node is
    connected. `encryption` returns what new connections are encrypted with. It is called for each, so that files of
    certificates may be replaced.
    """

    def __init__(
        self, contact_points: list[str], encryption: Callable[[], ssl.SSLContext | None], **arguments: Any
    ) -> None:
        self._encryption = encryption
        self._failures: dict[EndPoint, float] = {}
        self._broken: dict[Host, float] = {}
        self._reconnecting: Future[None] | None = None
        self._is_checked = False
        self._ended = threading.Event()
        # Without types in the driver.
        self.executor: Any
        self.metadata: Any
        self.control_connection: Any
        self.profile_manager: Any
        self.contact_points: Any
        super().__init__(contact_points, conviction_policy_factory=EveryFailureCounts, **arguments)

    def connect(self, *args: Any, **kwargs: Any) -> Session:
        """Open a session; from the first one on, the connections are checked."""
        session = super().connect(*args, **kwargs)
        if not self._is_checked:
            self._is_checked = True
            threading.Thread(target=self._check_until_end, name="database connections", daemon=True).start()
        return session

    def shutdown(self) -> None:
        """Close all connections, and end the checks."""
        self._ended.set()
        super().shutdown()

    def connection_factory(self, endpoint: EndPoint, *args: Any, **kwargs: Any) -> Connection:
        """Open a connection. A refused login is a failure as any other, after which the driver connects again.

        A failure is followed by a pause, because the driver replaces the connection of a pool without one
        (`HostConnection._replace`).
        """
        self._ended.wait(max(0.0, self._failures.get(endpoint, 0.0) + _PAUSE_SECONDS - time.monotonic()))
        try:
            connection = super().connection_factory(endpoint, *args, ssl_context=self._encryption(), **kwargs)
        except BaseException as e:
            self._failures[endpoint] = time.monotonic()
            if isinstance(e, AuthenticationFailed):
                raise ConnectionException(str(e), endpoint) from None
            raise
        self._failures.pop(endpoint, None)
        return connection

    def _make_connection_factory(self, host: Host, *args: Any, **kwargs: Any) -> partial[Connection]:
        return partial(self.connection_factory, host.endpoint, *args, **kwargs)

    def _check_until_end(self) -> None:
        while not self._ended.wait(CHECK_SECONDS):
            for check in (self._check_control_connection, self._check_nodes):
                try:
                    check()
                except Exception:
                    log.debug("a check of the connections to the database failed", exc_info=True)

    def _check_control_connection(self) -> None:
        """Replace a control connection that is closed, and find nodes that have other addresses by now."""
        connection = self.control_connection._connection
        if connection is not None and not connection.is_closed and not connection.is_defunct:
            return
        for endpoint in self._addresses():
            if self.metadata.get_host(endpoint) is None:
                self.add_host(endpoint, signal=True, refresh_nodes=False)
        if self._reconnecting is None or self._reconnecting.done():
            self._reconnecting = self.executor.submit(self.control_connection._reconnect)

    def _addresses(self) -> list[EndPoint]:
        found: list[EndPoint] = []
        for point in self.contact_points:
            try:
                answers = socket.getaddrinfo(point, self.port, socket.AF_UNSPEC, socket.SOCK_STREAM)
            except OSError:
                continue
            found += [DefaultEndPoint(address[0], self.port) for *_, address in answers]
        return found

    def _open_sessions(self) -> list[Session]:
        return list(self.sessions or ())

    def _check_nodes(self) -> None:
        """Connect to nodes that the driver has given up."""
        now = time.monotonic()
        hosts = [h for h in self.metadata.all_hosts() if self.profile_manager.distance(h) != HostDistance.IGNORED]
        connected = {host: [_is_connected(session, host) for session in self._open_sessions()] for host in hosts}
        self._broken = {h: self._broken.get(h, now) for h, each in connected.items() if not (h.is_up and all(each))}
        for host, since in list(self._broken.items()):
            if now - since < GIVEN_UP_SECONDS:
                continue
            self._broken[host] = now
            if host.is_up and any(connected[host]):
                for session in self._open_sessions():
                    session.update_created_pools()
            else:
                # Only a node that is down is marked up by the handler.
                host.set_down()
                self._start_reconnector(host, is_host_addition=False)


def _is_connected(session: Session, host: Host) -> bool:
    state = session.get_pool_state().get(host)
    return state is not None and not state["shutdown"] and state["open_count"] > 0
