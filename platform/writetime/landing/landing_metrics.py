"""The Prometheus metrics of `writetime land --follow`."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError


class LandingMetrics:
    """Counts changes and errors by table, and shows the number of tables that do not land."""

    def __init__(self, settings: Settings) -> None:
        """Start the metrics endpoint if `capture.land_metrics_port` is set."""
        registry = CollectorRegistry()
        self._changes = Counter("writetime_landing_changes", "Changes landed.", ["table"], registry=registry)
        self._errors = Counter(
            "writetime_landing_errors",
            "Failed attempts to land a table; a failure of all tables, such as of Kafka, has no table.",
            ["table"],
            registry=registry,
        )
        self._tables = Gauge("writetime_landing_tables", "Tables by status.", ["status"], registry=registry)
        self._skipped = Gauge(
            "writetime_landing_messages_skipped",
            "Messages of a topic that could not be read and were skipped since the start.",
            ["topic"],
            registry=registry,
        )
        port = settings.capture.land_metrics_port
        if port is not None:
            try:
                start_http_server(port, addr=settings.capture.metrics_host, registry=registry)
            except OSError as e:
                raise WritetimeError(f"capture.land_metrics_port {port} cannot be used: {e.strerror}") from None

    def landed(self, table: str, count: int) -> None:
        """Count changes of a table."""
        self._changes.labels(table).inc(count)

    def failed(self, table: str) -> None:
        """Count a failed attempt; `table` is empty for a failure of all tables."""
        self._errors.labels(table).inc()

    def tables(self, statuses: Mapping[str, int]) -> None:
        """Set the number of tables in each status."""
        for status, count in statuses.items():
            self._tables.labels(status).set(count)

    def skipped(self, topic: str, count: int) -> None:
        """Set the number of skipped messages of a topic."""
        self._skipped.labels(topic).set(count)
