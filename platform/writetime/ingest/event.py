"""An event: as a client sends it, as Kafka carries it, and as the row of `user_events` that it becomes.

In Kafka an event is a JSON object `{"eventId", "userId", "eventType", "timestamp", "payload"}` with the user id as key;
`timestamp` is ISO 8601 in UTC with milliseconds. The header `first-seen` marks an event whose `timestamp` is the
ingress's clock at a call with an `Idempotency-Key`: a retry of that call has the same id and a later timestamp, so the
sink stores it at the first timestamp.
"""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from writetime.core.json_texts import from_json_bytes

NAMESPACE = uuid.UUID("6f0b1c5e-52f7-5a0e-9d0f-0a4c3f1f6c11")
FIRST_SEEN_HEADER = "first-seen"
REDRIVEN_HEADER = "redriven"
_FIELDS = frozenset({"userId", "eventType", "timestamp", "payload"})
# The database accepts 65,535 bytes for a component of the partition key; an id of that length is a mistake.
MAX_ID_BYTES = 1024


class InvalidEvent(ValueError):
    """The event breaks a rule; the text describes it for the sender."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `payload` is the JSON text of the client's `payload`."""

    event_id: uuid.UUID
    user_id: str
    event_type: str
    timestamp: datetime
    payload: str
    first_seen: bool = False

    def key(self) -> bytes:
        """Return the Kafka key: all events of a user keep their order."""
        return self.user_id.encode()

    def value(self) -> bytes:
        """Return the Kafka value."""
        payload = orjson.Fragment(self.payload)
        return orjson.dumps(
            {
                "eventId": str(self.event_id),
                "userId": self.user_id,
                "eventType": self.event_type,
                "timestamp": _format_timestamp(self.timestamp),
                "payload": payload,
            }
        )


def accept(body: Any, idempotency_key: str | None, now: datetime) -> Event:
    """Convert one JSON object of a client to an event with an id and a timestamp.

    The id is random, or a UUIDv5 of user, key and the client's own timestamp if there is an idempotency key: the same
    call gives the same id.

    Raises:
        InvalidEvent: a field is missing, unknown or has a wrong type.
    """
    if not isinstance(body, dict):
        raise InvalidEvent("an event must be a JSON object")
    if unknown := body.keys() - _FIELDS:
        raise InvalidEvent(f"unknown field {min(unknown)!r}; known are {', '.join(sorted(_FIELDS))}")
    user_id = _text(body, "userId")
    event_type = _text(body, "eventType")
    own_timestamp = "timestamp" in body
    timestamp = _timestamp(body["timestamp"]) if own_timestamp else _milliseconds(now)
    if idempotency_key is None:
        event_id = uuid.uuid4()
    else:
        suffix = _format_timestamp(timestamp) if own_timestamp else ""
        event_id = uuid.uuid5(NAMESPACE, "\0".join((user_id, idempotency_key, suffix)))
    payload = _payload(body)
    return Event(event_id, user_id, event_type, timestamp, payload, bool(idempotency_key) and not own_timestamp)


def decode(value: bytes | None, headers: list[tuple[str, bytes]] | None = None) -> Event:
    """Read an event from a Kafka message. One for which this raises an `InvalidEvent` becomes a dead letter."""
    if value is None:
        raise InvalidEvent("the message has no value")
    try:
        body = from_json_bytes(value)
    except ValueError as e:
        raise InvalidEvent(f"the value is not JSON: {e}") from None
    if not isinstance(body, dict):
        raise InvalidEvent("the value is not a JSON object")
    id_text = _text(body, "eventId")
    try:
        event_id = uuid.UUID(id_text)
    except ValueError:
        raise InvalidEvent("eventId is not a UUID") from None
    if "timestamp" not in body:
        raise InvalidEvent("timestamp is missing")
    payload = _payload(body)
    first_seen = any(name == FIRST_SEEN_HEADER for name, _ in headers or ())
    return Event(
        event_id, _text(body, "userId"), _text(body, "eventType"), _timestamp(body["timestamp"]), payload, first_seen
    )


def _text(body: dict[str, Any], field: str) -> str:
    value = body.get(field)
    if not isinstance(value, str) or not value.strip():
        raise InvalidEvent(f"{field} must be a non-empty string")
    if "\0" in value:
        raise InvalidEvent(f"{field} must not contain a NUL character")
    if len(value.encode()) > MAX_ID_BYTES:
        raise InvalidEvent(f"{field} is longer than {MAX_ID_BYTES} bytes")
    return value


def _payload(body: dict[str, Any]) -> str:
    try:
        return orjson.dumps(body.get("payload")).decode()
    except orjson.JSONEncodeError as e:
        # The library reads deeper nesting than it writes.
        raise InvalidEvent(f"payload cannot be written as JSON: {e}") from None


def _timestamp(value: object) -> datetime:
    """Parse ISO 8601 with an offset, truncated to the database's milliseconds."""
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
        if parsed is not None and parsed.tzinfo is not None:
            return _milliseconds(parsed.astimezone(UTC))
    except (ValueError, OverflowError):
        pass
    raise InvalidEvent("timestamp must be ISO 8601 with an offset, such as 2013-01-01T05:15:00Z")


def _milliseconds(instant: datetime) -> datetime:
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


def _format_timestamp(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
