"""The identity of a node, the settings of its commit log and its records of TRUNCATE, as the node reports them."""

import re
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from uuid import UUID

from writetime.capture.node_schemas import Node
from writetime.changes.starts import Truncation
from writetime.clients.node_snapshots import listed
from writetime.core.errors import WritetimeError

# Of sizes in bytes, and of durations in microseconds.
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MICROS = {"ms": 1000, "s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6}
# By the name that it has in 4.0: a setting, and the unit of its number there (`config.Config` of 4.0 and 4.1).
_OF_4_0 = {
    "cdc_total_space_in_mb": ("cdc_total_space", "MiB"),
    "commitlog_segment_size_in_mb": ("commitlog_segment_size", "MiB"),
    "commitlog_sync_period_in_ms": ("commitlog_sync_period", "ms"),
}
_NAMES = (
    *("cdc_enabled", "cdc_block_writes", "cdc_raw_directory", "cdc_total_space", "commitlog_segment_size"),
    *("commitlog_sync", "commitlog_sync_period", "data_file_directories", "cdc_on_repair_enabled"),
)
_QUERY = "SELECT name, value FROM system_views.settings WHERE name IN ({})".format(
    ", ".join(f"'{name}'" for name in (*_NAMES, *_OF_4_0))
)

# A record of TRUNCATE: the id of a segment, the offset in it, and the time in milliseconds
# (`SystemKeyspace.truncationAsMapEntry`).
_TRUNCATION = struct.Struct(">qiq")


@dataclass(frozen=True)
class NodeFacts:
    """A node and its settings, as of one moment.

    Attributes:
        host_id: the id of the node, which changes if its disk is replaced.
        generation: a number that grows with each start of the node.
        synced_until: a time (microseconds). All writes that the node acknowledged before it are in segments, below the
            offsets that their `_cdc.idx` has from now on.
        cdc_enabled: whether the node links its segments to `cdc_raw`.
        cdc_raw: the folder of these links.
        blocks_writes: whether the node refuses writes when `cdc_raw` is full; else it deletes the oldest segments.
        total_bytes: the size at which `cdc_raw` is full.
        segment_bytes: the size of a segment.
        data_folders: the folders of the tables' files.
        loaded_at: the last time (microseconds) at which `sstableloader` streamed SSTables that the node added as files,
            since its start; 0 if never. It adds them as files with `cdc_on_repair_enabled: false` (5.0).
        sync_micros: how long (microseconds) after it acknowledged a write the node may sync it.
    """

    host_id: str
    generation: int
    synced_until: int
    cdc_enabled: bool
    cdc_raw: str | None
    blocks_writes: bool
    total_bytes: int
    segment_bytes: int
    data_folders: tuple[str, ...]
    loaded_at: int
    sync_micros: int = 0


def read_facts(node: Node) -> NodeFacts:
    """Ask a node.

    With `commitlog_sync: periodic`, a write is acknowledged first and synced later. The sync begins within a period and
    takes less than one. If a node's disk is slower, the node warns of it in its log. After a crash, the node answers
    only when it has replayed the writes. Raise Unreachable if it does not answer, and a WritetimeError if the value of
    a setting is invalid.
    """
    before = time.time_ns() // 1000
    local = node.rows("SELECT host_id, gossip_generation FROM system.local")[0]
    settings = _by_new_names(node.pairs(_QUERY))
    is_periodic = settings.get("commitlog_sync") == "periodic"
    sync_micros = 2 * _number(settings, "commitlog_sync_period", _MICROS) if is_periodic else 0
    return NodeFacts(
        str(local["host_id"]),
        local["gossip_generation"] or 0,
        before - sync_micros,
        settings.get("cdc_enabled") == "true",
        settings.get("cdc_raw_directory"),
        settings.get("cdc_block_writes", "true") == "true",
        _number(settings, "cdc_total_space", _BYTES, "0B"),
        _number(settings, "commitlog_segment_size", _BYTES, "0B"),
        tuple(listed(settings.get("data_file_directories", ""))),
        _loaded_at(node) if settings.get("cdc_on_repair_enabled") == "false" else 0,
        sync_micros,
    )


def _loaded_at(node: Node) -> int:
    # The node's list of streams has bulk loads for three days by default.
    rows = node.rows("SELECT operation, last_updated_at FROM system_views.streaming")
    times = [row["last_updated_at"].replace(tzinfo=UTC) for row in rows if row["operation"] == "Bulk Load"]
    return round(max(times).timestamp() * 1e6) if times else 0


def _by_new_names(found: dict[str, str | None]) -> dict[str, str]:
    """Return the settings that have a value, by their names in 4.1 or later, with their units. Later versions may
    report both names.
    """
    old = {new: f"{found[name]}{unit}" for name, (new, unit) in _OF_4_0.items() if found.get(name) is not None}
    return old | {name: value for name, value in found.items() if value is not None and name not in _OF_4_0}


def _number(settings: dict[str, str], name: str, units: dict[str, int], default: str = "") -> int:
    """Return the bytes or microseconds of a setting such as `4096MiB` or `100ms`."""
    text = settings.get(name, default)
    match = re.fullmatch(r"(\d+)\s*(\w*)", text)
    if match is None or match[2] not in units:
        raise WritetimeError(f"the node reports {name}: {text!r}; a number with one of {', '.join(units)} was expected")
    return int(match[1]) * units[match[2]]


def read_truncations(node: Node) -> tuple[Mapping[UUID, Truncation], Mapping[UUID, str]]:
    """Return the last truncation of each table that the node has truncated, by the table's id. A record that cannot be
    read affects only its table. The second value has the reasons, by the table's id. Raise Unreachable if the node does
    not answer.
    """
    records = node.rows("SELECT truncated_at FROM system.local")[0]["truncated_at"] or {}
    found, faults = {}, {}
    for table_id, record in records.items():
        try:
            segment, offset, milliseconds = _TRUNCATION.unpack(record)
        except struct.error:
            faults[table_id] = (
                f"the record of its last TRUNCATE in system.local is invalid (0x{record.hex()}, {_TRUNCATION.size} "
                "bytes are expected): TRUNCATE the table again, or report this with the version of Cassandra"
            )
            continue
        found[table_id] = Truncation(milliseconds * 1000, segment, offset)
    return found, faults
