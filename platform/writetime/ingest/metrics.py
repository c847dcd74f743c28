"""The sink's Prometheus metrics, and the alarm when the lag approaches the topic's retention."""

import logging
import time

from confluent_kafka import Consumer, TopicPartition
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from writetime.clients.topic_retention import RETENTION_ALARM, UnknownRetention, topic_retention_seconds
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.ingest.event_pipeline import EventPipeline
from writetime.ingest.writer import Receipt

log = logging.getLogger(__name__)

_ALARM_INTERVAL_SECONDS = 60.0


class SinkMetrics:
    """Counts outcomes and observes lag, writes in flight and the age of unfinished messages."""

    def __init__(self, settings: Settings) -> None:
        """Start the metrics endpoint if `ingest.sink_metrics_port` is set."""
        registry = CollectorRegistry()
        self._topic = settings.ingest.topic
        self._outcomes = Counter(
            "writetime_sink_messages", "Messages done, by outcome.", ["outcome"], registry=registry
        )
        self._retries = Gauge("writetime_sink_retries", "Writes repeated after a transient fault.", registry=registry)
        self._faults = Gauge("writetime_sink_faults", "Unexpected faults of single messages.", registry=registry)
        self._in_flight = Gauge("writetime_sink_writes_in_flight", "Writes in flight.", registry=registry)
        self._limit = Gauge("writetime_sink_write_limit", "Current limit of writes in flight.", registry=registry)
        self._unfinished = Gauge(
            "writetime_sink_unfinished_messages", "Messages read and not finished.", registry=registry
        )
        self._lag = Gauge("writetime_sink_lag_messages", "Messages not finished.", ["partition"], registry=registry)
        self._used = Gauge(
            "writetime_sink_retention_used_ratio",
            "Age of the oldest unfinished message, as a share of the topic's retention.",
            registry=registry,
        )
        try:
            self._retention_seconds = topic_retention_seconds(settings, self._topic)
        except UnknownRetention as e:
            log.warning("no alarm when lag approaches retention: %s", e)
            self._retention_seconds = None
        self._next_alarm = 0.0
        if settings.ingest.sink_metrics_port is not None:
            port = settings.ingest.sink_metrics_port
            try:
                start_http_server(port, addr=settings.ingest.sink_metrics_host, registry=registry)
            except OSError as e:
                raise WritetimeError(f"ingest.sink_metrics_port {port} cannot be used: {e.strerror}") from None

    def count(self, receipt: Receipt) -> None:
        """Count one message that is done."""
        self._outcomes.labels(receipt.outcome).inc()

    def observe(self, consumer: Consumer, pipeline: EventPipeline) -> None:
        """Read the gauges from the running sink, and warn when the lag approaches retention."""
        self._retries.set(pipeline.writer.retries)
        self._faults.set(pipeline.writer.faults + pipeline.faults)
        self._in_flight.set(pipeline.writer.in_flight)
        self._limit.set(int(pipeline.writer.limit))
        self._unfinished.set(pipeline.unfinished)
        # Partitions that went to another sink must not keep their last lag here.
        self._lag.clear()
        for partition, progress in pipeline.progress.items():
            _, end = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
            self._lag.labels(partition).set(max(0, end - progress.floor))
        age = pipeline.oldest_age_seconds(time.time())
        used = age / self._retention_seconds if self._retention_seconds else 0.0
        self._used.set(used)
        if used > RETENTION_ALARM and time.monotonic() > self._next_alarm:
            self._next_alarm = time.monotonic() + _ALARM_INTERVAL_SECONDS
            log.warning(
                "topic %s: the oldest unfinished message is %.0f s old, %.0f %% of the topic's retention; beyond it "
                "messages are lost. Last fault: %s",
                self._topic,
                age,
                used * 100,
                pipeline.writer.last_error or pipeline.dead_letters.last_error or "none",
            )
