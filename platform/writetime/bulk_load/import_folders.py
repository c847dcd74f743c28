"""Imports SSTables for the node of this machine: of one folder, or of the transfers of replications as they come."""

import logging
import posixpath
import threading
from collections.abc import Iterator

from pyarrow import fs

from writetime.bulk_load.node_import import import_node, is_imported, target_of
from writetime.bulk_load.sstables import RestoreManifest, faults_of, join, read_manifest
from writetime.clients.database import connect, node_of
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
    faults: dict[str, str] = {}
    while not stop.is_set():
        for transfer in _transfers(folder):
            try:
                _import_transfer(settings, transfer)
                faults.pop(transfer, None)
            except WritetimeError as e:
                if faults.get(transfer) != str(e):
                    log.error("%s; this is tried again", e)
                faults[transfer] = str(e)
        stop.wait(_PAUSE_SECONDS)


def _transfers(folder: str) -> Iterator[str]:
    """Yield the folders of transfers: `<keyspace>.<table>/<name>`."""
    for table in _folders(folder):
        for name in _folders(join(folder, table)):
            yield join(folder, posixpath.join(table, name))


def _folders(folder: str) -> list[str]:
    with faults_of(folder):
        filesystem, path = resolve(folder)
        found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)


def _import_transfer(settings: Settings, folder: str) -> None:
    manifest = read_manifest(folder)
    if manifest is None or manifest.target is None:
        return
    with connect(settings) as session:
        host = str(node_of(session, settings.capture.node).host_id)
        if host in manifest.target.nodes and not is_imported(folder, manifest.target, host):
            count = import_node(session, folder, manifest, host)
            log.info("%s: %s imported", manifest.target.table, pluralize(count, "SSTable"))
