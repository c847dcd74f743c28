"""Connects to ZooKeeper with the options that the settings give the client."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import make_digest_acl

from writetime.clients import tls
from writetime.core.config import Settings
from writetime.core.errors import Transient
from writetime.core.logs import ZOOKEEPER_CLIENT

_log = logging.getLogger(ZOOKEEPER_CLIENT)
# Below this level kazoo logs its requests, including the login.
_log.addFilter(lambda record: record.levelno >= logging.INFO)


class NoZooKeeper(Transient):
    """ZooKeeper does not answer."""


class _Reasons(logging.LoggerAdapter[logging.Logger]):
    """The log of one client, which keeps the last failure of a connection: kazoo's exceptions do not have it."""

    last: str | None = None

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a warning, as kazoo does for each connection that fails."""
        if str(msg).startswith(("Connection ", "Cannot resolve")):
            self.last = str(msg) % args
        super().warning(msg, *args, **kwargs)


@contextmanager
def connect(settings: Settings, seconds: int) -> Iterator[KazooClient]:
    """Open a client for a `with` block. Raises NoZooKeeper: no server accepts the client for this many seconds; with
    the reason.
    """
    reasons = _Reasons(_log)
    client = KazooClient(**{**client_options(settings), "logger": reasons})
    try:
        try:
            client.start(timeout=seconds)
        except KazooTimeoutError:
            reason = reasons.last or f"no answer for {seconds} s"
            what_to_do = tls.remedy(reason, "zookeeper") or "start it, or set zookeeper.hosts and the certificates"
            raise NoZooKeeper(f"no ZooKeeper answers at {settings.zookeeper.hosts} ({reason}); {what_to_do}") from None
        yield client
    finally:
        client.stop()
        client.close()


def client_options(settings: Settings) -> dict[str, Any]:
    """Return the arguments of a `KazooClient`.

    With a user name, the client authenticates with ZooKeeper's scheme `digest`, and only that user has access to the
    nodes that it creates. With a CA file it uses TLS, and the server's certificate must name the host of
    `zookeeper.hosts`.
    """
    zookeeper = settings.zookeeper
    options: dict[str, Any] = {"hosts": zookeeper.hosts, "logger": _log}
    if zookeeper.username is not None and zookeeper.password is not None:
        login = f"{zookeeper.username}:{zookeeper.password.get_secret_value()}"
        # ACLs for a node's creator would also include the client's certificate.
        acl = [make_digest_acl(zookeeper.username, zookeeper.password.get_secret_value(), all=True)]
        options |= {"auth_data": [("digest", login)], "default_acl": acl}
    # For its errors: kazoo reads the files at each connection, and reports that there is none.
    if tls.client_context("zookeeper", zookeeper) is not None:
        options |= {
            "use_ssl": True,
            "check_hostname": True,
            "ca": str(zookeeper.tls_ca_file),
            "certfile": zookeeper.tls_certificate_file and str(zookeeper.tls_certificate_file),
            "keyfile": zookeeper.tls_key_file and str(zookeeper.tls_key_file),
        }
    return options
