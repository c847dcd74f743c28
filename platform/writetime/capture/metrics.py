"""An agent's Prometheus metrics, and the same numbers as its *status*. The agent writes the status to `status.json` for
`writetime status`, and sends it to Kafka with the watermarks, for programs that observe all agents.
"""

import collections
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from writetime.capture.node_schemas import Unreachable
from writetime.capture.progress import Totals
from writetime.capture.state_files import read_json, write_json
from writetime.changes.model import KINDS
from writetime.clients.database import DRIVER_FAULTS, DatabaseUnreachable
from writetime.core.arrow import pc
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.scylla_cdc.log import LogError, LogGap
from writetime.storage.file_errors import StorageError

log = logging.getLogger(__name__)

_FILE = "status.json"
# The first kind whose errors include a fault is that of the fault.
_KINDS: dict[str, type[Exception] | tuple[type[Exception], ...]] = {
    "node": Unreachable,
    "database": (DatabaseUnreachable, *DRIVER_FAULTS),
    "gap": LogGap,
    "log": LogError,
    "storage": StorageError,
    "publishing": WritetimeError,
    "disk": OSError,
}


@dataclass
class AgentLag:
    """The lag of an agent behind its node. The name of each field is the name of a metric."""

    lag_bytes: int = 0
    lag_segments: int = 0
    lag_seconds: float = 0.0
    oldest_segment_seconds: float = 0.0
    backlog_bytes: int = 0
    backlog_limit_bytes: int = 0
    aside_segments: int = 0
    held_tables: int = 0


_LAG = {
    "lag_bytes": "Synced bytes that are not published, and the bytes of segments set aside.",
    "lag_segments": "Segments that are not completely published, including those set aside.",
    "lag_seconds": "How long the agent has been behind, or changes that hold a table have been missing; otherwise 0.",
    "oldest_segment_seconds": "Seconds since the last write to the oldest unpublished segment; 0 without one.",
    "backlog_bytes": "Bytes that the node counts against cdc_total_space.",
    "backlog_limit_bytes": "The node's cdc_total_space, at which it refuses writes.",
    "aside_segments": "Segments that were set aside or vanished, and were not put back: they hold the watermark.",
    "held_tables": "Tables whose watermark does not advance, because changes are missing.",
}
_TOTALS = {
    "segments": "Completed segments.",
    "segments_set_aside": "Faulty segments.",
    "segments_vanished": "Segments that vanished before they were read completely.",
    "mutations": "Mutations in completed segments.",
    "mutations_set_aside": "Mutations in completed segments that could not be read to their ends.",
    "changes_set_aside": "Decoded changes in completed segments that were not published.",
}


class _TotalsCollector(Collector):
    """Shows the counts that continue after a restart."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals

    def collect(self) -> Iterator[CounterMetricFamily]:
        for name, text in _TOTALS.items():
            yield CounterMetricFamily(f"writetime_capture_{name}", text, value=getattr(self._totals, name))


class AgentMetrics:
    """Counts changes and errors, and shows the lag, and the totals of a node's segments."""

    def __init__(self, settings: Settings, totals: Totals | None = None) -> None:
        """Start the metrics endpoint if `capture.metrics_port` is set."""
        registry = CollectorRegistry()
        self._changes = Counter(
            "writetime_capture_changes", "Changes acknowledged by Kafka.", ["table", "kind"], registry=registry
        )
        self._errors = Counter("writetime_capture_errors", "Faults, by kind.", ["what"], registry=registry)
        self._refused = Counter(
            "writetime_capture_changes_refused",
            "Changes that Kafka or the schema registry rejects; their segments are set aside.",
            ["table"],
            registry=registry,
        )
        if totals is not None:
            registry.register(_TotalsCollector(totals))
        self._gauges = {
            name: Gauge(f"writetime_capture_{name}", text, registry=registry) for name, text in _LAG.items()
        }
        self._log_lag = Gauge(
            "writetime_capture_log_lag_seconds",
            "ScyllaDB tables: age of the write time up to which the CDC log is published.",
            ["table"],
            registry=registry,
        )
        self._findings = Counter(
            "writetime_capture_log_findings",
            "ScyllaDB tables: other findings in the CDC log, by kind.",
            ["table", "kind"],
            registry=registry,
        )
        self._snapshots = {
            name: Gauge(f"writetime_capture_snapshot_{name}", text, ["table"], registry=registry)
            for name, text in {
                "sstables": "SSTables of a table's snapshot.",
                "sstables_read": "SSTables of a table's snapshot that are completely published.",
                "changes": "Published changes of a table's snapshot.",
                "done": "1 if a table's snapshot is published and deleted, else 0.",
            }.items()
        }
        self._counts: dict[str, dict[str, int]] = {}
        self._faults: dict[str, int] = {}
        self._found: dict[str, dict[str, int]] = {}
        port = settings.capture.metrics_port
        if port is not None:
            try:
                start_http_server(port, addr=settings.capture.metrics_host, registry=registry)
            except OSError as e:
                raise WritetimeError(f"capture.metrics_port {port} cannot be used: {e.strerror}") from None

    def published(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Count changes, by table and kind."""
        for (table, kind), count in counts.items():
            self._changes.labels(table, kind).inc(count)
            kinds = self._counts.setdefault(table, {})
            kinds[kind] = kinds.get(kind, 0) + count

    def error(self, what: str) -> None:
        """Count a fault."""
        self._errors.labels(what).inc()
        self._faults[what] = self._faults.get(what, 0) + 1

    def refused(self, table: str, count: int) -> None:
        """Count changes that Kafka or the registry always rejects."""
        self._refused.labels(table).inc(count)
        self.error("refused")

    def lag(self, lag: AgentLag) -> None:
        """Set the metrics of the lag."""
        for name, value in asdict(lag).items():
            self._gauges[name].set(value)

    def log_lag(self, table: str, seconds: float) -> None:
        """Set the lag of a ScyllaDB table's log."""
        self._log_lag.labels(table).set(seconds)

    def found(self, table: str, counts: Mapping[str, int]) -> None:
        """Count findings in a ScyllaDB table's log that are not changes."""
        for kind, count in counts.items():
            if count:
                self._findings.labels(table, kind).inc(count)
                kinds = self._found.setdefault(table, {})
                kinds[kind] = kinds.get(kind, 0) + count

    def findings(self, table: str) -> dict[str, int]:
        """Return the findings in a table's log since the start of the agent."""
        return self._found.get(table, {})

    def snapshots(self, status: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the progress of each table's snapshot."""
        for table, found in status.items():
            values = {**found, "done": found["status"] == "done"}
            for name, gauge in self._snapshots.items():
                gauge.labels(table).set(values[name])

    def counts(self) -> collections.Counter[str]:
        """Return the number of changes per table since the start of the agent."""
        return collections.Counter({table: sum(kinds.values()) for table, kinds in self._counts.items()})

    def status(self, lag: AgentLag) -> dict[str, Any]:
        """Return the progress, and the counts since the start of the agent."""
        return {"at": time.time(), "lag": asdict(lag), "changes": self._counts, "errors": self._faults}


def summary(statuses: Collection[Mapping[str, Any]]) -> dict[str, float]:
    """Return the numbers of several agents as one: sums of counts, and maximums of times and shares."""
    numbers: dict[str, float] = {
        "agents": len(statuses),
        "agents_held": sum(bool(s.get("held_by")) for s in statuses),
        "silent_seconds": max((time.time() - s.get("at", 0.0) for s in statuses), default=0.0),
        "backlog_share": max((_share(s.get("lag", {})) for s in statuses), default=0.0),
        "errors": sum(sum(s.get("errors", {}).values()) for s in statuses),
        "changes": sum(sum(kinds.values()) for s in statuses for kinds in s.get("changes", {}).values()),
    }
    for name in _LAG:
        together = max if name.endswith("_seconds") else sum
        numbers[name] = together([s.get("lag", {}).get(name, 0) for s in statuses] or [0])
    for name in _TOTALS:
        numbers[name] = sum(s.get("totals", {}).get(name, 0) for s in statuses)
    return numbers


def _share(lag: Mapping[str, float]) -> float:
    limit = lag.get("backlog_limit_bytes", 0)
    return lag.get("backlog_bytes", 0) / limit if limit else 0.0


def counts_of(table: str, changes: pa.RecordBatch) -> dict[tuple[str, str], int]:
    """Return the number of changes of each kind."""
    numbers = np.bincount(pc.index_in(changes["kind"], pa.array(KINDS)).to_numpy(zero_copy_only=False), minlength=4)
    return {(table, kind): int(count) for kind, count in zip(KINDS, numbers, strict=True) if count}


def write_status(folder: Path, status: dict[str, Any]) -> None:
    """Save the numbers for `read_status`. Log a failure, such as a full disk, because it must not stop the agent."""
    try:
        write_json(folder / _FILE, status)
    except OSError as e:
        log.error("the status cannot be written: %s", e)


def read_status(folder: Path) -> dict[str, Any] | None:
    """Return the last numbers that an agent wrote; None if there are none."""
    return read_json(folder / _FILE)


def fault_kind(fault: Exception) -> str:
    """Return the kind under which a fault is counted."""
    return next((kind for kind, errors in _KINDS.items() if isinstance(fault, errors)), "unexpected")
