"""Reads and writes the commits in the log of a Delta table.

The format is that of Delta's protocol (PROTOCOL.md, "Actions"). A commit is one file, with one action per line. Its
name is its number. If two programs write the same number, the store accepts only the first (`obstore`, with a
conditional put in object stores). A file exists whole or not at all, so a kill leaves no part of a commit.
"""

import functools
import hashlib
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from writetime.core.errors import WritetimeError, plain_text
from writetime.core.extras import WhenUsed
from writetime.core.outages import kind_of
from writetime.core.private_folders import restrict_home
from writetime.delta.parquet import Unreadable, fault_of
from writetime.delta.storage import Storage
from writetime.delta.store_clock import micros_behind

if TYPE_CHECKING:
    import obstore
    from obstore import exceptions, store
else:
    # Agents import the lake, and are installed without it.
    obstore, store, exceptions = map(WhenUsed, ("obstore", "obstore.store", "obstore.exceptions"))

Action = dict[str, Any]

# Each commit has at least one of these.
_ACTIONS = frozenset({"add", "cdc", "commitInfo", "domainMetadata", "metaData", "protocol", "remove", "txn"})
# In `commitInfo`: the digest of the commit's number and its other actions.
_CONTENT = "writetime.content"

# Options of connections, which each kind of store has.
_OF_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "timeout",
        "user_agent",
    }
)


def commit_name(version: int) -> str:
    """Return the path of the file of a commit."""
    return f"_delta_log/{version:020d}.json"


def read_commit(storage: Storage, version: int) -> bytes | None:
    """Return the file of a commit; None if the log does not have it."""
    try:
        with storage.filesystem().open_input_stream(commit_name(version)) as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def actions_of(storage: Storage, version: int, commit: bytes) -> list[Action]:
    """Return the actions of a commit, by its file.

    Raises:
        Unreadable: the file is empty, cut or changed, as a power failure or a disk leaves it. A file that another
            program wrote has no digest. If such a file is changed and still has valid actions, nothing shows it.
    """
    try:
        actions = [orjson.loads(line) for line in commit.splitlines() if line]
        wanted = actions[0].get("commitInfo", {}).get(_CONTENT)
    except (ValueError, IndexError, AttributeError):
        fault = "is cut or changed" if commit.strip() else "is empty"
        raise Unreadable(fault_of(storage, commit_name(version), fault, of_log=True)) from None
    content = commit.partition(b"\n")[2]
    if wanted not in {None, _content_digest(version, content)} or all(_ACTIONS.isdisjoint(each) for each in actions):
        raise Unreadable(fault_of(storage, commit_name(version), "is changed", of_log=True))
    return actions


def digest_of(commit: bytes) -> int:
    """Return a number that identifies a commit, by its file: its time and the random names of its files make it unique.
    Delta stores numbers of 63 bits. It is never 0.
    """
    return int.from_bytes(hashlib.sha256(commit).digest()[:8]) >> 1 or 1


def write_commit(storage: Storage, version: int, actions: Iterable[Action]) -> bytes | None:
    """Write a commit, durably; return its file, or None if there is another one with its number."""
    data = _serialised(version, actions)
    # A client repeats a request whose answer was lost. Then the store answers that the file exists.
    is_made = put_new(storage, commit_name(version), data) or read_commit(storage, version) == data
    return data if is_made else None


def _serialised(version: int, actions: Iterable[Action]) -> bytes:
    """Return the file of a commit. Its first action, `commitInfo`, has a digest of the others."""
    first, *rest = actions
    content = b"\n".join(map(orjson.dumps, rest))
    about = first["commitInfo"] | {_CONTENT: _content_digest(version, content)}
    return orjson.dumps({"commitInfo": about}) + b"\n" + content


def _content_digest(version: int, content: bytes) -> int:
    return digest_of(b"%d\n" % version + content)


def put_new(storage: Storage, path: str, data: bytes) -> bool:
    """Write a file if it does not exist; return whether it was written. A kill leaves no partial file.

    Raises:
        WritetimeError: the store refuses the file. It is a `Transient` if this may pass, and then the file may exist.
    """
    if storage.is_local:
        return _put_new_locally(storage, path, data)
    try:
        opened = _store_of(storage.root, tuple(storage.options.items()))
        obstore.put(opened, f"{storage.below}/{path}" if storage.below else path, data, mode="create")
    except exceptions.AlreadyExistsError:
        return False
    except exceptions.BaseError as e:
        raise kind_of(e)(f"{storage.address}/{path} cannot be written: {_first_line(e)}") from None
    return True


def _put_new_locally(storage: Storage, path: str, data: bytes) -> bool:
    """Do the same on a disk. The file is durable before it has its name, and its name when this returns."""
    target = Path(storage.address, path)
    written = target.with_name(f"_{uuid.uuid4().hex}.tmp")
    try:
        restrict_home(Path(storage.root))
        target.parent.mkdir(parents=True, exist_ok=True)
        with written.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        target.hardlink_to(written)
    except FileExistsError:
        return False
    except OSError as e:
        raise kind_of(e)(f"{target} cannot be written: {plain_text(e)}") from None
    finally:
        written.unlink(missing_ok=True)
    storage.sync(path.rpartition("/")[0])
    return True


def about(storage: Storage, info: Mapping[str, object]) -> Action:
    """Return the action about the commit itself; `info` is for readers of the log."""
    return {"commitInfo": {"timestamp": millis(storage), "operation": "WRITE", "engineInfo": "writetime", **info}}


def numbers(storage: Storage, values: Mapping[str, int]) -> list[Action]:
    """Return the actions that record numbers by application id."""
    now = millis(storage)
    return [{"txn": {"appId": name, "version": value, "lastUpdated": now}} for name, value in values.items()]


def millis(storage: Storage) -> int:
    """Return the time in milliseconds, by the store's clock if this machine's is far behind."""
    return (time.time_ns() // 1000 + micros_behind(storage)) // 1000


# The result is cached, because a connection to an object store costs more than a commit.
@functools.lru_cache(64)
def _store_of(address: str, given: tuple[tuple[str, str], ...]) -> Any:
    """Open a folder with options under the names of delta-rs. Like delta-rs, ignore unknown options, such as those that
    only delta-rs has.

    Raises:
        WritetimeError: an option has an invalid value.
    """
    if "://" not in address:
        return store.LocalStore(address)
    named = {name.lower(): value for name, value in given}
    of_client = {name: short for name in named if (short := name.removeprefix("aws_")) in _OF_CLIENT}
    client: Any = {short: named.pop(name) for name, short in of_client.items()}
    while True:
        config: Any = named
        try:
            return store.from_url(address, config=config, client_options=client)
        except (exceptions.BaseError, ValueError) as e:
            unknown = isinstance(e, exceptions.UnknownConfigurationKeyError)
            if unknown and (names := [name for name in named if f"'{name}'" in str(e)]):
                del named[names[0]]
                continue
            raise WritetimeError(f"{address} cannot be opened with lake.storage_options: {_first_line(e)}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
