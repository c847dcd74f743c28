"""The Prometheus metrics of `writetime follow`, computed at each request."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.follow.pipeline import TablePipeline

STATUSES = ("landing", "waiting", "set aside")


class FollowMetrics(Collector):
    """The metrics of some tables, and of the topics that all of them need."""

    def __init__(
        self,
        tables: Callable[[], Iterable[TablePipeline]],
        skipped: Callable[[], dict[str, int]],
        cached: Callable[[], int],
    ) -> None:
        """Store the tables. `skipped` returns the number of unreadable messages of each shared topic, and `cached` the
        bytes of the cache.
        """
        self._tables = tables
        self._skipped = skipped
        self._cached = cached

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        changes = CounterMetricFamily("writetime_follow_changes", "Changes landed.", labels=["table"])
        errors = CounterMetricFamily("writetime_follow_errors", "Attempts that failed.", labels=["table", "step"])
        rows = CounterMetricFamily("writetime_follow_rows", "Rows that a step has processed.", labels=["table", "step"])
        seconds = CounterMetricFamily("writetime_follow_seconds", "Duration of a step.", labels=["table", "step"])
        cpu = CounterMetricFamily(
            "writetime_follow_cpu_seconds", "CPU seconds of a step's thread.", labels=["table", "step"]
        )
        batch = GaugeMetricFamily("writetime_follow_batch_rows", "Rows of the last batch.", labels=["table", "step"])
        delay = GaugeMetricFamily(
            "writetime_follow_delay_seconds",
            "From the arrival of the last batch's data to the end of the batch.",
            labels=["table", "step"],
        )
        behind = GaugeMetricFamily(
            "writetime_follow_behind_seconds",
            "How long a step has been behind; 0 if it is not.",
            labels=["table", "step"],
        )
        waiting = GaugeMetricFamily(
            "writetime_follow_waiting_changes", "Changes in the topic that have not landed.", labels=["table"]
        )
        files = GaugeMetricFamily(
            "writetime_follow_files", "Live files of a part of a table in the lake.", labels=["table", "part"]
        )
        tables = list(self._tables())
        for table in tables:
            waiting.add_metric([table.name], table.waiting)
            for part, count in table.files.items():
                files.add_metric([table.name, part], count)
            changes.add_metric([table.name], table.landing.rows)
            for name, step in table.counts().items():
                names = [table.name, name]
                errors.add_metric(names, step.failures)
                rows.add_metric(names, step.rows)
                seconds.add_metric(names, step.seconds)
                cpu.add_metric(names, step.cpu)
                batch.add_metric(names, step.batch)
                delay.add_metric(names, step.delay)
                since = step.behind_since
                behind.add_metric(names, max(time.time() - since, 0.0) if since else 0.0)
        statuses = GaugeMetricFamily("writetime_follow_tables", "Tables by status.", labels=["status"])
        counts = Counter(table.landing.report.status for table in tables)
        for status in STATUSES:
            statuses.add_metric([status], counts[status])
        skipped = GaugeMetricFamily(
            "writetime_follow_messages_skipped",
            "Messages of a topic that could not be read and were skipped since the start.",
            labels=["topic"],
        )
        for topic, count in self._skipped().items():
            skipped.add_metric([topic], count)
        cache = GaugeMetricFamily(
            "writetime_follow_cache_bytes", "Bytes of the decoded files in lake.cache.", value=self._cached()
        )
        yield from (changes, waiting, errors, rows, seconds, cpu, batch, delay, behind, files, cache, statuses, skipped)


def serve_metrics(settings: Settings, metrics: FollowMetrics) -> None:
    """Start the metrics endpoint if `follow.metrics_port` is set. Raise `WritetimeError` if the port cannot be used."""
    port = settings.follow.metrics_port
    if port is None:
        return
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        start_http_server(port, addr=settings.follow.metrics_host, registry=registry)
    except OSError as e:
        raise WritetimeError(f"follow.metrics_port {port} cannot be used: {e.strerror}") from None
