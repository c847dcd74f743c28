"""A worker's Prometheus metrics: outcomes of attempts, waiting and running times of items, and waiting items."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from writetime.core.errors import WritetimeError

_WAITED_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_RAN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
OUTCOMES = ("completed", "retry", "dead", "cancelled", "fenced")


class QueueMetrics:
    """One worker's metrics of one queue."""

    def __init__(self, metrics: "WorkerMetrics", queue: str) -> None:
        self.outcomes = {name: metrics.outcomes.labels(queue, name) for name in OUTCOMES}
        self.claimed = metrics.claimed.labels(queue)
        self.waited = metrics.waited.labels(queue)
        self.ran = metrics.ran.labels(queue)
        self.gauges = {name: gauge.labels(queue) for name, gauge in metrics.gauges.items()}
        # By the kind of their place, too.
        self.faults = metrics.faults


class WorkerMetrics:
    """Counts and gauges of all queues of a worker."""

    def __init__(self, host: str, port: int) -> None:
        """Start the metrics endpoint. Raises `WritetimeError` if the port cannot be used."""
        registry, queue = CollectorRegistry(), ["queue"]
        self.claimed = Counter("writetime_worker_claimed", "Items claimed.", queue, registry=registry)
        self.outcomes = Counter(
            "writetime_worker_attempts",
            "Attempts by outcome: completed, failed and to be repeated (retry), dead, cancelled, or refused by the "
            "fence (fenced).",
            ["queue", "outcome"],
            registry=registry,
        )
        self.waited = Histogram(
            "writetime_worker_waited_seconds",
            "Time from an item's due time to the start of its handler.",
            queue,
            buckets=_WAITED_BUCKETS,
            registry=registry,
        )
        self.ran = Histogram(
            "writetime_worker_handler_seconds",
            "Running time of handlers.",
            queue,
            buckets=_RAN_BUCKETS,
            registry=registry,
        )
        self.faults = Counter(
            "writetime_worker_faults",
            "Unexpected faults, by place: an item, a bucket, a shard, or work for a whole queue.",
            ["queue", "kind"],
            registry=registry,
        )
        self.gauges = {
            name: Gauge(f"writetime_worker_{name}", text, queue, registry=registry)
            for name, text in {
                "shards": "Shards that this worker owns.",
                "shards_set_aside": "Shards that it does not take for a while because of a fault in them.",
                "waiting_items": "Waiting items of its shards, as far as it has read ahead.",
                "running_items": "Items that it has claimed and not settled.",
                "oldest_item_seconds": "Age of the oldest unfinished item of its shards that is due.",
            }.items()
        }
        try:
            start_http_server(port, addr=host, registry=registry)
        except OSError as e:
            raise WritetimeError(f"workqueue.metrics_port {port} cannot be used: {e.strerror}") from None

    def of(self, queue: str) -> QueueMetrics:
        """Return the metrics of a queue."""
        return QueueMetrics(self, queue)
