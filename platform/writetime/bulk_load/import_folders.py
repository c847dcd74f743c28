"""Imports SSTables for the node of this machine: of one folder, or of the transfers of replications as they come."""

import logging
import posixpath
import threading
from collections.abc import Iterator, Mapping

from cassandra.cluster import Session
from pyarrow import fs

from writetime.bulk_load.node_import import import_node, is_imported, target_of
from writetime.bulk_load.sstables import RestoreManifest, faults_of, join, read_manifest
from writetime.clients.database import connect, node_of
from writetime.clients.prepared_statements import driver_faults_named
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.storage.locations import resolve, without_secrets

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0


def import_folder(settings: Settings, folder: str) -> tuple[RestoreManifest, int]:
    """Import the SSTables of a folder that are for the node of this machine, which `capture.node` names if the cluster
    has several. Return the manifest, and the number of SSTables. The errors are those of `import_node`.
    """
    manifest = read_manifest(folder)
    if manifest is None or manifest.target is None:
        raise WritetimeError(
            f"{without_secrets(folder)} has no complete restore for a target: run `writetime restore KS.TABLE --to "
            f"{without_secrets(folder)} --into KS.OTHER` until it ends"
        )
    with connect(settings) as session:
        target = target_of(session, manifest, folder)
        host = str(node_of(session, settings.capture.node).host_id)
        if host not in target.nodes:
            raise WritetimeError(
                f"{without_secrets(folder)} has no SSTables for the node {host}, which has no replicas of the keyspace"
            )
        return manifest, import_node(session, folder, manifest, host)


def import_transfers(settings: Settings, folder: str, stop: threading.Event) -> None:
    """Import each transfer that a replication writes below a folder, until the `stop`. A failure is logged, and tried
    again.
    """
    transfers, fault = _Transfers(settings, folder), ""
    while not stop.is_set():
        try:
            with driver_faults_named(f"the import of {without_secrets(folder)}"):
                transfers.import_new()
            fault = ""
        except WritetimeError as e:
            if fault != str(e):
                log.error("%s; this is tried again", e)
            fault = str(e)
        stop.wait(_PAUSE_SECONDS)


class _Transfers:
    """The transfers `<keyspace>.<table>/<name>` below a folder, and those of them that are done."""

    def __init__(self, settings: Settings, folder: str) -> None:
        self._settings, self._folder = settings, folder
        self._done: set[str] = set()

    def import_new(self) -> None:
        """Import those that are not done. One that fails does not stop the others."""
        found = [join(self._folder, posixpath.join(t, n)) for t in self._folders("") for n in self._folders(t)]
        self._done &= set(found)
        waiting, faults = {}, []
        for transfer in (each for each in found if each not in self._done):
            try:
                waiting[transfer] = read_manifest(transfer)
            except WritetimeError as e:
                faults.append(str(e))
        if any(waiting.values()):
            faults += self._import_each({transfer: manifest for transfer, manifest in waiting.items() if manifest})
        if faults:
            raise WritetimeError("; ".join(faults))

    def _import_each(self, waiting: Mapping[str, RestoreManifest]) -> Iterator[str]:
        """Import transfers; yield the fault of each that fails."""
        with connect(self._settings) as session:
            host = str(node_of(session, self._settings.capture.node).host_id)
            for transfer, manifest in waiting.items():
                try:
                    with driver_faults_named(f"the import of {without_secrets(transfer)}"):
                        self._import(session, transfer, manifest, host)
                except WritetimeError as e:
                    yield str(e)

    def _folders(self, name: str) -> list[str]:
        folder = join(self._folder, name)
        with faults_of(folder):
            filesystem, path = resolve(folder)
            found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def _import(self, session: Session, folder: str, manifest: RestoreManifest, host: str) -> None:
        target = target_of(session, manifest, folder)
        if host in target.nodes and not is_imported(folder, manifest, host):
            count = import_node(session, folder, manifest, host)
            log.info("%s: %s imported", target.table, pluralize(count, "SSTable"))
        self._done.add(folder)
