"""What an agent says of itself: Prometheus metrics, and the same numbers in `status.json` for `writetime status`."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from writetime.capture.durable import read_json, write_json
from writetime.changes import KINDS
from writetime.config import Settings
from writetime.errors import WritetimeError
from writetime.merge.arrow import pc

_FILE = "status.json"


@dataclass
class Lag:
    """How far an agent is behind its node: bytes and segments not published yet, and for how many seconds now."""

    bytes: int = 0
    segments: int = 0
    seconds: float = 0.0
    backlog_bytes: int = 0
    backlog_limit_bytes: int = 0


class AgentMetrics:
    """Counts changes and errors, and shows the lag."""

    def __init__(self, settings: Settings) -> None:
        """Start the metrics endpoint where `capture.metrics_port` names one."""
        registry = CollectorRegistry()
        self._changes = Counter(
            "writetime_capture_changes", "Changes acknowledged by Kafka.", ["table", "kind"], registry=registry
        )
        self._errors = Counter("writetime_capture_errors", "Faults, by what they are of.", ["what"], registry=registry)
        self._refused = Counter(
            "writetime_capture_changes_refused",
            "Changes that Kafka or the schema registry will not take; their segments are set aside.",
            ["table"],
            registry=registry,
        )
        self._aside = Counter("writetime_capture_segments_set_aside", "Faulty segments.", registry=registry)
        self._vanished = Counter(
            "writetime_capture_segments_vanished", "Segments that were gone before all was read.", registry=registry
        )
        self._gauges = {
            name: Gauge(f"writetime_capture_{name}", text, registry=registry)
            for name, text in {
                "lag_bytes": "Bytes that the node has synced and that are not published.",
                "lag_segments": "Segments of which not all is published.",
                "lag_seconds": "For how long the agent has been behind; 0 when it has published all there is.",
                "backlog_bytes": "Bytes that the node counts against cdc_total_space.",
                "backlog_limit_bytes": "The node's cdc_total_space, at which it refuses writes.",
            }.items()
        }
        self._log_lag = Gauge(
            "writetime_capture_log_lag_seconds",
            "Of a ScyllaDB table: how long ago the write time was up to which its CDC log is published.",
            ["table"],
            registry=registry,
        )
        self._snapshots = {
            name: Gauge(f"writetime_capture_snapshot_{name}", text, ["table"], registry=registry)
            for name, text in {
                "sstables": "SSTables of a table's snapshot.",
                "sstables_read": "SSTables of a table's snapshot of which all is published.",
                "changes": "Changes of a table's snapshot that are published.",
                "done": "1 if a table's snapshot is published and deleted, else 0.",
            }.items()
        }
        self._counts: dict[str, dict[str, int]] = {}
        self._faults: dict[str, int] = {}
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
        """Count changes that are not published, as they never can be."""
        self._refused.labels(table).inc(count)
        self.error("refused")

    def set_aside(self) -> None:
        """Count a segment that was set aside."""
        self._aside.inc()

    def vanished(self) -> None:
        """Count a segment that was gone before all of it was read."""
        self._vanished.inc()

    def lag(self, lag: Lag) -> None:
        """Show the lag."""
        values = asdict(lag)
        for name, gauge in self._gauges.items():
            gauge.set(values[name.removeprefix("lag_")])

    def log_lag(self, table: str, seconds: float) -> None:
        """Show how far a ScyllaDB table's log is behind."""
        self._log_lag.labels(table).set(seconds)

    def snapshots(self, status: Mapping[str, Mapping[str, Any]]) -> None:
        """Show how far the snapshot of each table is."""
        for table, found in status.items():
            values = {**found, "done": found["state"] == "done"}
            for name, gauge in self._snapshots.items():
                gauge.labels(table).set(values[name])

    def status(self, lag: Lag) -> dict[str, Any]:
        """Return the numbers since the start of the agent."""
        return {"at": time.time(), "lag": asdict(lag), "changes": self._counts, "errors": self._faults}


def counts_of(table: str, changes: pa.RecordBatch) -> dict[tuple[str, str], int]:
    """Return how many changes of each kind there are."""
    numbers = np.bincount(pc.index_in(changes["kind"], pa.array(KINDS)).to_numpy(zero_copy_only=False), minlength=4)
    return {(table, kind): int(count) for kind, count in zip(KINDS, numbers, strict=True) if count}


def write_status(folder: Path, status: dict[str, Any]) -> None:
    """Keep the numbers for `read_status`."""
    write_json(folder / _FILE, status)


def read_status(folder: Path) -> dict[str, Any] | None:
    """Return the numbers that an agent wrote last; None if none has."""
    return read_json(folder / _FILE)
