"""The HTTP ingress's metrics for Prometheus."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_ACK_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class IngressMetrics:
    """The metrics of one ingress, in a separate registry.

    At any time, accepted events = acknowledged + failed + pending.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.requests = counter("writetime_ingress_requests", "Calls of /events by status.", ["status"])
        self.unauthorized = counter("writetime_ingress_unauthorized", "Calls of any path without a known token.")
        self.refused = counter(
            "writetime_ingress_refused",
            "Calls of any path that broke a limit or a rule of HTTP, by status.",
            ["status"],
        )
        self.unfinished_bytes = gauge(
            "writetime_ingress_unfinished_bytes",
            "Bytes of bodies that are arriving, or whose calls are not answered yet.",
        )
        self.body_bytes = counter("writetime_ingress_body_bytes", "Bytes of the bodies of POST /events.")
        self.accepted = counter("writetime_ingress_events_accepted", "Events put in the queue to the broker.")
        self.acknowledged = counter("writetime_ingress_events_acknowledged", "Events that the broker acknowledged.")
        self.failed = counter(
            "writetime_ingress_events_failed",
            "Accepted events without the broker's acknowledgement in time; they may be in the topic.",
        )
        self.not_queued = counter(
            "writetime_ingress_events_not_queued",
            "Events that the Kafka producer did not take; they are not in the topic.",
        )
        self.pending = gauge("writetime_ingress_events_pending", "Events waiting for the broker.")
        self.ack_seconds = Histogram(
            "writetime_ingress_ack_seconds",
            "Seconds from the queue to the broker's last acknowledgement of a call.",
            buckets=_ACK_SECONDS,
            registry=self.registry,
        )
