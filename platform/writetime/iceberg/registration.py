"""Lets a catalog follow the versions of an Iceberg table, and keeps the files that it names until it has a newer one.

A catalog that does not answer names an old version meanwhile. The metadata file of a version, and the manifests of its
newest snapshot, would be deleted after a few dozen refreshes, so its readers would find nothing.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from writetime.delta.storage import Storage
from writetime.iceberg import metadata_files
from writetime.iceberg.catalogs import CatalogEntry

_RETRY_SECONDS = 60.0


@dataclass(frozen=True)
class PublishedVersion:
    """A version of the metadata, and the paths of the files that readers of its newest snapshot need."""

    number: int
    metadata: Mapping[str, Any]
    files: Collection[str]


class Registration:
    """The versions of an Iceberg table in a catalog. One thread offers them, and another one may register them."""

    def __init__(self, entry: CatalogEntry, storage: Storage, kept_seconds: float) -> None:
        """Register the versions of the table in a folder. Files that the catalog names are kept for `kept_seconds`
        after they would have been deleted.
        """
        self._entry, self._storage, self._kept_seconds = entry, storage, kept_seconds
        self._newest: PublishedVersion | None = None
        self._registered = 0
        self._retry_at = 0.0
        self._lock = threading.Lock()
        # The files of the version that the catalog has, and of those whose registration failed: if an answer was lost,
        # the catalog has one of them.
        self._named: Collection[str] = ()
        self._sent: deque[Collection[str]] = deque(maxlen=max(ceil(kept_seconds / _RETRY_SECONDS), 1))
        # The files that were to be deleted, and until when each is kept.
        self._kept: dict[str, float] = {}

    @property
    def is_current(self) -> bool:
        """Whether the catalog has the newest version that was offered."""
        return self._newest is None or self._newest.number == self._registered

    def offer(self, version: PublishedVersion, existing: Callable[[], Collection[str]]) -> None:
        """Let a version be the next one to register. `existing` returns the files of all versions that exist. The
        catalog may have any of these until this program has registered one.
        """
        with self._lock:
            if self._newest is None:
                self._named = existing()
            self._newest = version

    def register(self, *, at_once: bool = True) -> None:
        """Let the catalog have the newest version, if it does not. After a failure, wait a while, unless it is to be
        done `at_once`, so that a catalog that does not answer holds nothing else up.

        Raises:
            WritetimeError: as `CatalogEntry.register`.
        """
        version = self._newest
        if version is None or self.is_current or (not at_once and time.monotonic() < self._retry_at):
            return
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        with self._lock:
            self._sent.append(version.files)
        address = f"{version.metadata['location']}/{metadata_files.metadata_name(version.number)}"
        self._entry.register(version.metadata, address, self._exists)
        with self._lock:
            self._named = version.files
            self._sent.clear()
        self._registered, self._retry_at = version.number, 0.0

    def registered_name(self) -> str | None:
        """Return the name by which the catalog has the table, None if it does not have it.

        Raises:
            WritetimeError: as `CatalogEntry.name_of`.
        """
        return self._entry.name_of(metadata_files.location_of(self._storage))

    def unregister(self) -> None:
        """Remove the table from the catalog, if that has it. Its files stay.

        Raises:
            WritetimeError: as `CatalogEntry.drop`.
        """
        self._entry.drop(metadata_files.location_of(self._storage))

    def deletable(self, paths: Iterable[str]) -> list[str]:
        """Return those of some files to delete that the catalog does not name, with earlier ones of which this is now
        so, or that were kept for long enough: then the data files are deleted, too.
        """
        now = time.monotonic()
        with self._lock:
            self._kept |= dict.fromkeys(paths, now + self._kept_seconds)
            named = {*self._named, *(path for files in self._sent for path in files)}
            found = [path for path, until in self._kept.items() if path not in named or until <= now]
            for path in found:
                del self._kept[path]
        return found

    def _exists(self, address: str) -> bool:
        return metadata_files.exists(self._storage, address[len(metadata_files.location_of(self._storage)) + 1 :])
