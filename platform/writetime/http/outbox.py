"""Events on their way to the broker: queued, sent by librdkafka's threads, acknowledged on the event loop.

confluent-kafka has a producer for asyncio (`AIOProducer`), but it refuses headers, which events need
(`FIRST_SEEN_HEADER`). It also makes a future per message; a call here has one for all of its events.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from writetime.clients.kafka import client_config, max_message_bytes
from writetime.clients.topic_options import Keeps, lossy_faults
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.http.metrics import IngressMetrics
from writetime.ingest.event import FIRST_SEEN_HEADER, Event

log = logging.getLogger(__name__)

TOPIC_CHECK_SECONDS = 30.0
"""While events arrive, how often the options of their topic are checked."""
_POLL_SECONDS = 0.002
_PROBE_SECONDS = 2.0
_PROBE_KEPT_SECONDS = 1.0
_FIRST_SEEN: list[tuple[str, str | bytes | None]] = [(FIRST_SEEN_HEADER, b"1")]
# The largest size of a message's key, headers and framing.
_MESSAGE_OVERHEAD_BYTES = 4096


class BrokerUnreachableError(Transient):
    """No broker answers now; one may answer later."""


@dataclass(frozen=True, slots=True)
class SendFault:
    """Why the broker has not acknowledged an event; it never takes one that is too large."""

    reason: str
    is_too_large: bool = False

    @classmethod
    def of(cls, error: KafkaError) -> "SendFault":
        """Return the fault of an error."""
        return cls(error.str(), error.code() == KafkaError.MSG_SIZE_TOO_LARGE)


class _Call:
    """Events that are sent together, and their outcomes."""

    __slots__ = ("done", "faults", "waiting")

    def __init__(self, done: asyncio.Future[None], events: int) -> None:
        self.done = done
        self.waiting = 0
        self.faults: list[SendFault | None] = [SendFault("not queued")] * events


class Outbox:
    """The producer of the ingress. It belongs to the event loop that runs when it is created. `on_fatal` is called with
    the reason when the producer has failed for good: from then on it refuses all events. Raises WritetimeError:
    librdkafka refuses a setting of `kafka.client`.
    """

    def __init__(self, settings: Settings, metrics: IngressMetrics, on_fatal: Callable[[str], None]) -> None:
        self._settings = settings
        self._topic = settings.ingest.topic
        self._metrics = metrics
        self._producer = _producer(settings, error_cb=self._on_error)
        # Sends each event alone. It is made once it is needed.
        self._single: Producer | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._on_fatal = on_fatal
        self._probe_lock = asyncio.Lock()
        self._probe_fault: str | None = None
        self._probe_kept_until = 0.0
        # Why the topic would lose events, and the check that finds it.
        self._lossy: str | None = None
        self._is_checked = False
        self._checking: asyncio.Task[None] | None = None
        self._next_check = 0.0
        self.pending = 0
        metrics.pending.set_function(lambda: self.pending)

    async def deliver(self, messages: Sequence[tuple[Event, bytes]]) -> list[SendFault | None]:
        """Send events with their Kafka values; return, for each, None once the broker has it, else the fault.

        An event with a fault may still be in the topic, unless it is too large. While the topic would lose events, each
        has a fault.
        """
        checking = self._check_in_time()
        if self._lossy is not None:
            return [SendFault(self._lossy)] * len(messages)
        faults = await self._send(self._producer, messages)
        # The broker refuses whole batches of the producer, with events that are small, and of other calls.
        if large := [i for i, fault in enumerate(faults) if fault is not None and fault.is_too_large]:
            if self._single is None:
                self._single = _producer(self._settings, error_cb=self._on_error, **{"batch.num.messages": 1})
            alone = await self._send(self._single, [messages[i] for i in large])
            for i, fault in zip(large, alone, strict=True):
                faults[i] = fault
        if not self._is_checked and checking is not None:
            # The topic may have been created without Writetime since the start.
            await asyncio.wait([checking], timeout=self._settings.ingest.ack_timeout_seconds)
        return faults if self._lossy is None else [SendFault(self._lossy)] * len(messages)

    def _check_in_time(self) -> asyncio.Task[None] | None:
        """Start a check of the topic if it is due; return the last one."""
        if self._loop.time() >= self._next_check and (self._checking is None or self._checking.done()):
            self._next_check = self._loop.time() + (TOPIC_CHECK_SECONDS if self._is_checked else _PROBE_KEPT_SECONDS)
            self._checking = self._loop.create_task(self._check_topic())
        return self._checking

    async def _check_topic(self) -> None:
        try:
            lossy = await asyncio.to_thread(_lossy, self._settings)
        except WritetimeError:
            # The broker does not answer, which the events show, too.
            return
        if lossy is not None and lossy != self._lossy:
            log.error("events are refused: %s", lossy)
        self._lossy, self._is_checked = lossy, True

    async def largest(self) -> int | None:
        """Return the largest message that the topic takes (bytes); None if Kafka does not say."""
        try:
            return await asyncio.to_thread(max_message_bytes, self._settings, self._topic)
        except WritetimeError:
            return None

    async def _send(self, producer: Producer, messages: Sequence[tuple[Event, bytes]]) -> list[SendFault | None]:
        call = _Call(self._loop.create_future(), len(messages))
        started = perf_counter()
        for index, (event, value) in enumerate(messages):
            try:
                producer.produce(
                    self._topic,
                    value,
                    event.key(),
                    on_delivery=partial(self._on_delivery, call, index),
                    headers=_FIRST_SEEN if event.first_seen else [],
                )
            except (BufferError, KafkaException) as e:
                call.faults[index] = SendFault.of(e.args[0]) if isinstance(e, KafkaException) else SendFault(str(e))
                self._metrics.not_queued.inc(len(messages) - index)
                # The reason reaches the error callback only in a poll, and there may be no other poll.
                self._loop.call_soon(producer.poll, 0)
                break
            call.waiting += 1
        if call.waiting:
            self.pending += call.waiting
            if producer is self._producer:
                # Each event counts once.
                self._metrics.accepted.inc(call.waiting)
            if self._timer is None:
                self._timer = self._loop.call_later(_POLL_SECONDS, self._poll)
            await call.done
            self._metrics.ack_seconds.observe(perf_counter() - started)
        return call.faults

    async def fault(self) -> str | None:
        """Return why events cannot be sent now, or None. A thread queries the broker, at most once per second."""
        async with self._probe_lock:
            if self._loop.time() >= self._probe_kept_until:
                # Errors reach the callback only in a poll, and an idle ingress has no other poll.
                self._producer.poll(0)
                try:
                    await asyncio.to_thread(_probe, self._producer, self._settings)
                    self._probe_fault = None
                except WritetimeError as e:
                    self._probe_fault = str(e)
                self._probe_kept_until = self._loop.time() + _PROBE_KEPT_SECONDS
        self._check_in_time()
        return self._probe_fault or self._lossy

    def close(self) -> None:
        """Wait for the broker's answers to pending events; each comes within `ack_timeout_seconds`."""
        for producer in self._producers():
            producer.flush()
        if self._timer is not None:
            self._timer.cancel()

    def _poll(self) -> None:
        # Acknowledgements run as callbacks inside poll(), here on the loop: many per turn, without waking a thread.
        for producer in self._producers():
            producer.poll(0)
        self._timer = self._loop.call_later(_POLL_SECONDS, self._poll) if self.pending else None

    def _producers(self) -> list[Producer]:
        return [self._producer] if self._single is None else [self._producer, self._single]

    def _on_delivery(self, call: _Call, index: int, error: KafkaError | None, _message: Message) -> None:
        self.pending -= 1
        call.waiting -= 1
        call.faults[index] = fault = None if error is None else SendFault.of(error)
        if fault is None:
            self._metrics.acknowledged.inc()
        elif not fault.is_too_large:
            self._metrics.failed.inc()
        # A call that a stop has cancelled no longer waits.
        if call.waiting == 0 and not call.done.done():
            call.done.set_result(None)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._on_fatal(f"the Kafka producer has failed for good: {error.str()}")


def check(settings: Settings) -> None:
    """Check that the brokers have the topic, and that its options lose no event. Raises BrokerUnreachableError: no
    broker answers; WritetimeError: the topic is missing or would lose events, or librdkafka refuses a setting of
    `kafka.client`.
    """
    _probe(_producer(settings), settings)
    if (lossy := _lossy(settings, log)) is not None:
        raise WritetimeError(lossy)


def _lossy(settings: Settings, log: logging.Logger | None = None) -> str | None:
    """Return why the topic would lose events that it has acknowledged, or never acknowledge one; None if it would not.
    Log its other faults.
    """
    topics, least_bytes = {settings.ingest.topic: Keeps.UNREAD}, settings.ingest.max_event_bytes
    return "; ".join(map(str, lossy_faults(settings, topics, log, least_bytes))) or None


def _probe(producer: Producer, settings: Settings) -> None:
    name, brokers = settings.ingest.topic, settings.kafka.bootstrap_servers
    try:
        topic = producer.list_topics(name, timeout=_PROBE_SECONDS).topics[name]
    except KafkaException as e:
        raise BrokerUnreachableError(
            f"Kafka at {brokers} does not answer ({e.args[0].str()}); start it or set kafka.bootstrap_servers"
        ) from None
    if topic.error is not None:
        raise WritetimeError(
            f"the topic {name} at {brokers} is missing ({topic.error.str()}); run `writetime init` or set ingest.topic"
        )


def _producer(settings: Settings, **callbacks: Any) -> Producer:
    ingest = settings.ingest
    own = {
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": "gzip",
        "linger.ms": 5,
        "message.timeout.ms": round(ingest.ack_timeout_seconds * 1000),
        "message.max.bytes": max(1_000_000, ingest.max_event_bytes + _MESSAGE_OVERHEAD_BYTES),
        "queue.buffering.max.messages": ingest.max_pending_events,
        # The partitioner of the Java client: all writers of a user's events use the same partition.
        "partitioner": "murmur2_random",
    }
    try:
        return Producer(client_config(settings, **own, **callbacks))
    except KafkaException as e:
        raise WritetimeError(f"Kafka refuses a setting of kafka.client: {e.args[0].str()}") from None
