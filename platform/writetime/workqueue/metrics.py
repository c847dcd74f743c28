"""A worker's Prometheus metrics: outcomes of attempts, waiting and running times of items, and waiting items."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from writetime.core.errors import WritetimeError

_WAITED_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_RAN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class QueueMetrics:
    """One worker's metrics of one queue."""

    def __init__(self, metrics: "WorkerMetrics", queue: str) -> None:
        self._outcomes = {name: metrics.outcomes.labels(queue, name) for name in OUTCOMES}
        self._claimed = metrics.claimed.labels(queue)
        self._waited = metrics.waited.labels(queue)
        self._ran = metrics.ran.labels(queue)
        self._queue = queue
        self._faults = metrics.faults
        self._gauges = {name: gauge.labels(queue) for name, gauge in metrics.gauges.items()}

    def claimed(self, count: int) -> None:
        """Count items that were claimed."""
        self._claimed.inc(count)

    def ended(self, outcome: str, count: int = 1) -> None:
        """Count the outcomes of attempts."""
        self._outcomes[outcome].inc(count)

    def faulted(self, kind: str) -> None:
        """Count an unexpected fault, by the kind of its place."""
        self._faults.labels(self._queue, kind).inc()

    def began(self, waited_seconds: float) -> None:
        """Record how long an item was due when its handler started."""
        self._waited.observe(waited_seconds)

    def ran(self, seconds: float) -> None:
        """Record how long a handler took."""
        self._ran.observe(seconds)

    def observe(self, *, shards: int, aside: int, waiting: int, running: int, oldest_seconds: float) -> None:
        """Set the gauges of this worker's present items."""
        self._gauges["shards"].set(shards)
        self._gauges["shards_set_aside"].set(aside)
        self._gauges["waiting_items"].set(waiting)
        self._gauges["running_items"].set(running)
        self._gauges["oldest_item_seconds"].set(oldest_seconds)


OUTCOMES = ("completed", "retry", "dead", "fenced")


class WorkerMetrics:
    """Counts and gauges of all queues of a worker."""

    def __init__(self, host: str, port: int) -> None:
        """Start the metrics endpoint.

        Raises:
            WritetimeError: the port cannot be used.
        """
        registry = CollectorRegistry()
        self.claimed = Counter("writetime_worker_claimed", "Items claimed.", ["queue"], registry=registry)
        self.outcomes = Counter(
            "writetime_worker_attempts",
            "Attempts by outcome: completed, failed and to be repeated (retry), dead, or refused by the "
            "fence (fenced).",
            ["queue", "outcome"],
            registry=registry,
        )
        self.waited = Histogram(
            "writetime_worker_waited_seconds",
            "Time from an item's due time to the start of its handler.",
            ["queue"],
            buckets=_WAITED_BUCKETS,
            registry=registry,
        )
        self.ran = Histogram(
            "writetime_worker_handler_seconds",
            "Running time of handlers.",
            ["queue"],
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
            name: Gauge(f"writetime_worker_{name}", text, ["queue"], registry=registry)
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
