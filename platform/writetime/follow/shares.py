"""Distributes the tables to the programs that follow the same lake. Each table belongs to one program.

Each program has a node in ZooKeeper that exists as long as its session. A table belongs to the program with the
greatest hash of both names (rendezvous hashing), so a program that starts or ends moves only its own tables. While the
programs do not agree yet, two may work on one table. This costs time, but is safe, because the commits of a table
exclude each other.
"""

import hashlib
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, NodeExistsError
from kazoo.handlers.threading import KazooTimeoutError

from writetime.clients.zookeeper import connect
from writetime.core.config import Settings
from writetime.core.counts import pluralize

log = logging.getLogger(__name__)

_PROGRAMS = "/follow/programs"
_TIMEOUT_SECONDS = 15
# The tables are not followed while this read waits for an answer.
_ANSWER_SECONDS = 1.0


class TableShares:
    """The tables that belong to this program. It reads the list of programs at most every `look_seconds`."""

    def __init__(self, client: KazooClient | None, look_seconds: float) -> None:
        self._client = client
        self._look_seconds = look_seconds
        self._name = uuid.uuid4().hex
        self._programs = [self._name]
        self._next_look = 0.0
        self._is_away = False

    def look(self) -> None:
        """Read the list of programs. While ZooKeeper does not answer, nothing changes."""
        if self._client is None or time.monotonic() < self._next_look:
            return
        try:
            programs = self._found(self._client)
        except (KazooException, KazooTimeoutError) as e:
            if not self._is_away:
                log.warning(
                    "ZooKeeper does not answer (%s): the distribution of the tables does not change", type(e).__name__
                )
            self._is_away = True
            return
        finally:
            self._next_look = time.monotonic() + self._look_seconds
        if self._is_away:
            log.info("ZooKeeper answers again")
        self._is_away = False
        if programs != self._programs:
            log.info("the tables are shared by %s", pluralize(len(programs), "program"))
        self._programs = programs

    def has(self, table: str) -> bool:
        """Return whether a table belongs to this program."""
        return max(self._programs, key=lambda program: _hash(program, table), default=None) == self._name

    def _found(self, client: KazooClient) -> list[str]:
        """Return the programs, including this one.

        Raises:
            KazooException: ZooKeeper is away, or refuses a request.
            KazooTimeoutError: it does not answer in time.
        """
        if not client.connected:
            # The client would keep the requests until it is connected.
            raise ConnectionLoss
        # Its session may have ended since.
        with suppress(NodeExistsError):
            client.create_async(f"{_PROGRAMS}/{self._name}", ephemeral=True, makepath=True).get(timeout=_ANSWER_SECONDS)
        found: Any = client.get_children_async(_PROGRAMS).get(timeout=_ANSWER_SECONDS)
        return sorted(found)


@contextmanager
def shares(settings: Settings, look_seconds: float = 1.0) -> Iterator[TableShares]:
    """Join the programs that share the tables, if `follow.share` is set, for a `with` block. Raise `NoZooKeeper` if
    ZooKeeper does not answer.
    """
    if not settings.follow.share:
        yield TableShares(None, look_seconds)
        return
    with connect(settings, _TIMEOUT_SECONDS) as client:
        yield TableShares(client, look_seconds)


def _hash(program: str, table: str) -> bytes:
    return hashlib.sha256(f"{program}/{table}".encode()).digest()
