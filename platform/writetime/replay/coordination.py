"""A queue in ZooKeeper: its newest batch, its lock, and the cursors of processors.

Any client may read the nodes. If the settings have credentials, only clients with these may.

    /queues/<queue>                         <queue>-<n>: the newest batch
    /queues/<queue>/lock                    held by the publisher that seals a batch
    /queues/<queue>/processors/<name>       <queue>-<n>: the last batch that the processor has done
    /queues/<queue>/processors/<name>/lock  held by the active instance of the processor

Only the cursors of processors are stored nowhere else. The database decides which batches are published.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, LockTimeout, NoAuthError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.recipe.lock import Lock

from writetime.clients.zookeeper import NoZooKeeper, connect
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError

ROOT = "/queues"
TIMEOUT_SECONDS = 15
_LOOK_SECONDS = 0.5
# All of them are numbers of batches that the database could have.
_NUMBER = re.compile(r"[0-9]{1,18}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


class Moved(WritetimeError):
    """Another instance of the processor, or `seek`, moved a cursor."""


@dataclass(frozen=True)
class Cursor:
    """The last batch that a processor has done, 0 for none, and the version of its node, None if there is none. It is
    not `known` if it was never written: the node is missing, or has no content.
    """

    n: int
    version: int | None
    known: bool = True

    def moved(self, to: int) -> "Cursor":
        """Return the cursor after a write of its node."""
        return Cursor(to, 0 if self.version is None else self.version + 1)


def check_name(name: str, what: str) -> str:
    """Return a name; raise `WritetimeError` if it is not valid in a path."""
    if not _NAME.fullmatch(name):
        raise WritetimeError(
            f"{what} {name!r}: 1 to 200 letters, digits, '_', '-' and '.', not beginning with '-' or '.'"
        )
    return name


class Coordination:
    """A queue's nodes, through one client."""

    def __init__(self, client: KazooClient, queue: str, answer_seconds: float = TIMEOUT_SECONDS) -> None:
        """Use a client. A request that has no answer in `answer_seconds` raises `NoZooKeeper`."""
        self._client = client
        self._seconds = answer_seconds
        self._queue = check_name(queue, "queue")
        self._path = f"{ROOT}/{queue}"
        self._head = Cursor(0, None, known=False)

    def head(self) -> int:
        """Return the number of the newest batch in ZooKeeper, 0 if it has none."""
        self._head = self._read(self._path)
        return self._head.n

    def advance(self, n: int) -> None:
        """Record that there is a batch with this number. If there is a newer one, this has no effect."""
        while self._head.n < n:
            if self._write(self._path, n, self._head.version):
                self._head = self._head.moved(n)
            else:
                self._head = self._read(self._path)

    def cursor(self, processor: str) -> Cursor:
        """Return the cursor of a processor."""
        return self._read(self._processor(processor))

    def cursors(self) -> dict[str, Cursor]:
        """Return the cursors of all processors."""
        names: list[str] = []
        with suppress(NoNodeError):
            names = self._ask(self._client.get_children_async, f"{self._path}/processors")
        return {name: self.cursor(name) for name in sorted(names)}

    def move(self, processor: str, to: int, before: Cursor) -> Cursor:
        """Move a cursor that is unchanged since it was read; raise `Moved` if it has changed."""
        if not self._write(self._processor(processor), to, before.version):
            raise self._moved(processor)
        return before.moved(to)

    def require(self, processor: str, cursor: Cursor, notify: Callable[[Any], Any] | None = None) -> None:
        """Raise `Moved` if a cursor has changed since it was read; call `notify` once when it changes, see `watch`."""
        stat = self._ask(self._client.exists_async, self._processor(processor), watch=notify)
        if (None if stat is None else stat.version) != cursor.version:
            raise self._moved(processor)

    def forget(self, processor: str) -> None:
        """Delete the nodes of a processor; raise `WritetimeError` if an instance of it is at work."""
        path = self._processor(processor)
        with suppress(NoNodeError):
            if self._ask(self._client.get_children_async, f"{path}/lock"):
                raise WritetimeError(f"an instance of processor {processor} is running; stop it first")
        with _named(), suppress(NoNodeError):
            self._client.delete(path, recursive=True)

    def synchronise(self) -> None:
        """Ensure that the next read is as new as any write that a client has seen."""
        self._ask(self._client.sync_async, ROOT)

    @contextmanager
    def publishing(self, seconds: float) -> Iterator[None]:
        """Hold the queue's lock, which keeps publishers from conflicts; continue without it after a while, or while
        ZooKeeper does not answer, because correctness does not depend on it.
        """
        lock = self._client.Lock(f"{self._path}/lock")
        held = False
        if self._client.connected:
            with suppress(KazooException, KazooTimeoutError):
                # A lock waits for the end of the session, whatever its timeout, if ZooKeeper is paused.
                self._client.exists_async(self._path).get(timeout=seconds)
                held = lock.acquire(timeout=seconds)
        try:
            yield
        finally:
            if held:
                _release(lock)

    @contextmanager
    def working(self, processor: str, stop: Callable[[], bool]) -> Iterator[bool]:
        """Hold the lock of a processor, so that a second instance stands by; False if the stop is requested before."""
        path = f"{self._processor(processor)}/lock"
        lock = self._client.Lock(path)
        held = False
        try:
            while not held and not stop():
                with _named(), suppress(LockTimeout):
                    try:
                        held = lock.acquire(timeout=_LOOK_SECONDS)
                    except NoNodeError:
                        # ZooKeeper has lost its data meanwhile. A lock creates its path only once.
                        lock = self._client.Lock(path)
            yield held
        finally:
            if held:
                _release(lock)

    def watch(self, notify: Callable[[Any], Any]) -> None:
        """Call `notify` once, when the newest batch changes, or ZooKeeper must be read again. Passing the same function
        again before that counts once.
        """
        self._ask(self._client.exists_async, self._path, watch=notify)

    def _moved(self, processor: str) -> Moved:
        return Moved(f"the cursor of {processor} in queue {self._queue} was moved by another instance")

    def _processor(self, name: str) -> str:
        return f"{self._path}/processors/{check_name(name, 'processor')}"

    def _ask(self, request: Callable[..., Any], *values: Any, **options: Any) -> Any:
        with _named():
            return request(*values, **options).get(timeout=self._seconds)

    def _read(self, path: str) -> Cursor:
        try:
            data, stat = self._ask(self._client.get_async, path)
        except NoNodeError:
            return Cursor(0, None, known=False)
        if not data:
            return Cursor(0, stat.version, known=False)
        queue, _, number = data.decode(errors="replace").rpartition("-")
        if queue != self._queue or not _NUMBER.fullmatch(number):
            raise WritetimeError(
                f"ZooKeeper: {path} is {data[:100]!r}, not {self._queue}-<number>: delete this node; `writetime replay "
                f"rebuild {self._queue}` restores it from the database"
            )
        return Cursor(int(number), stat.version)

    def _write(self, path: str, n: int, version: int | None) -> bool:
        """Write a node if it still has this version; return whether it was written."""
        data = f"{self._queue}-{n}".encode()
        try:
            if version is None:
                self._ask(self._client.create_async, path, data, makepath=True)
            else:
                self._ask(self._client.set_async, path, data, version)
        except (NodeExistsError, BadVersionError, NoNodeError):
            return False
        return True


@contextmanager
def coordination(settings: Settings, queue: str, answer_seconds: float = TIMEOUT_SECONDS) -> Iterator[Coordination]:
    """Connect to ZooKeeper for a `with` block. Raises `NoZooKeeper` if it does not answer."""
    with connect(settings, TIMEOUT_SECONDS) as client:
        yield Coordination(client, queue, answer_seconds)


def _release(lock: Lock) -> None:
    # A lost lock goes with its session.
    with suppress(KazooException, KazooTimeoutError):
        lock.release()


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except (NoNodeError, NodeExistsError, BadVersionError, LockTimeout):
        raise
    except NoAuthError:
        raise WritetimeError(
            f"ZooKeeper refuses access to the nodes below {ROOT}: set zookeeper.username and password of the user that "
            "created it"
        ) from None
    except (KazooException, KazooTimeoutError) as e:
        raise NoZooKeeper(f"ZooKeeper: {type(e).__name__} {e}".rstrip()) from None
