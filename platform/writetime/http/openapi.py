"""The OpenAPI document of the HTTP ingress."""

from importlib.metadata import version
from typing import Any

from writetime.core.config import Settings
from writetime.http.bodies import MAX_PARTS
from writetime.http.protocol import MAX_HEADER_BYTES, MAX_HEADERS
from writetime.http.work_items import openapi_path

# Load balancers and supervisors read these without a token.
OPEN_PATHS = frozenset({"/health", "/ready"})


def document(settings: Settings, max_batch_events: int) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document with the limits in force."""
    limits = settings.ingest
    error = {"$ref": "#/components/schemas/Error"}
    retry = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    described = {
        "openapi": "3.1.0",
        "info": {
            "title": "Writetime HTTP ingress",
            "version": version("writetime"),
            "description": "Events over HTTP into Kafka, work items into the database. `202`: they have them. Any path "
            f"also answers 408 to a call that has not arrived in {limits.request_seconds:g} s, 431 to more than "
            f"{MAX_HEADERS} headers or {MAX_HEADER_BYTES} bytes of them, and 400 or 505 to calls that are not "
            "HTTP/1.1.",
        },
        "paths": {
            "/events": {
                "post": {
                    "operationId": "postEvents",
                    "summary": "Queue one event, or a batch of events.",
                    "parameters": [{"$ref": "#/components/parameters/IdempotencyKey"}],
                    "requestBody": {
                        "required": True,
                        "content": _json(
                            {
                                "oneOf": [
                                    {"$ref": "#/components/schemas/Event"},
                                    {
                                        "type": "array",
                                        "items": {"$ref": "#/components/schemas/Event"},
                                        "minItems": 1,
                                        "maxItems": max_batch_events,
                                    },
                                ]
                            }
                        ),
                    },
                    "responses": {
                        "202": _response(
                            "The brokers have acknowledged every event of the call.",
                            {
                                "oneOf": [
                                    {"$ref": "#/components/schemas/Queued"},
                                    {"$ref": "#/components/schemas/QueuedBatch"},
                                ]
                            },
                        ),
                        "400": _response(
                            "The body, an event or the Idempotency-Key breaks a rule; nothing of the call is queued.",
                            error,
                        ),
                        "413": _response(
                            f"An event is larger than {limits.max_event_bytes} bytes (as sent, or as queued: compact "
                            f"JSON with its id and timestamp), a batch has more than {max_batch_events} events, or its "
                            f"body is larger than {max(limits.max_batch_bytes, limits.max_event_bytes)} bytes or has "
                            f"more than {MAX_PARTS} arrays, objects and fields; "
                            "nothing of the call is queued.",
                            error,
                        ),
                        "429": _response(
                            "Too many events are waiting for the brokers, or too many bytes are arriving at once; "
                            "nothing of the call is queued.",
                            error,
                            retry,
                        ),
                        "503": _response(
                            f"The brokers have not acknowledged every event in about {limits.ack_timeout_seconds:g} s. "
                            "Whether the others are queued is unknown: repeat the call with the same Idempotency-Key.",
                            {"$ref": "#/components/schemas/NotAcknowledged"},
                            retry,
                        ),
                    },
                }
            },
            "/queues/{queue}/items": openapi_path(settings.workqueue.max_payload_bytes, max_batch_events),
            "/health": {
                "get": {
                    "operationId": "health",
                    "summary": "Whether the process is alive.",
                    "responses": {"200": _response("It is.", {"$ref": "#/components/schemas/State"})},
                }
            },
            "/ready": {
                "get": {
                    "operationId": "ready",
                    "summary": "Whether events can be queued.",
                    "responses": {
                        "200": _response("They can.", {"$ref": "#/components/schemas/State"}),
                        "503": _response(
                            "The brokers or the topic cannot be reached, or the ingress is stopping.", error
                        ),
                    },
                }
            },
            "/metrics": {
                "get": {
                    "operationId": "metrics",
                    "summary": "Metrics for Prometheus.",
                    "responses": {
                        "200": {
                            "description": "Prometheus text format.",
                            "content": {"text/plain": {"schema": {"type": "string"}}},
                        }
                    },
                }
            },
            "/openapi.json": {
                "get": {
                    "operationId": "openapi",
                    "summary": "This document.",
                    "responses": {"200": _response("OpenAPI 3.1.", {"type": "object"})},
                }
            },
        },
        "components": {
            "parameters": {
                "IdempotencyKey": {
                    "name": "Idempotency-Key",
                    "in": "header",
                    "required": False,
                    "description": "Makes a call repeatable: the same events with the same key get the same ids and "
                    "are stored once. Without it, every call makes new events.",
                    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
                }
            },
            "schemas": _schemas(),
        },
    }
    return _with_tokens(described) if limits.tokens else described


def _with_tokens(described: dict[str, Any]) -> dict[str, Any]:
    described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    unauthorized = _response(
        "The call has no known token.",
        {"$ref": "#/components/schemas/Error"},
        {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}},
    )
    for path, operations in described["paths"].items():
        if path not in OPEN_PATHS:
            for operation in operations.values():
                operation["security"] = [{"token": []}]
                operation["responses"]["401"] = unauthorized
    return described


def _schemas() -> dict[str, Any]:
    text = {"type": "string"}
    event_id = {"type": "string", "format": "uuid"}
    return {
        "Event": {
            "type": "object",
            "required": ["userId", "eventType"],
            "additionalProperties": False,
            "properties": {
                "userId": {"type": "string", "pattern": r"\S", "description": "At most 1024 bytes in UTF-8."},
                "eventType": {"type": "string", "pattern": r"\S", "description": "At most 1024 bytes in UTF-8."},
                "timestamp": {
                    "type": "string",
                    "format": "date-time",
                    "description": "ISO 8601 with an offset, kept in milliseconds. Without it: the time of the call.",
                },
                "payload": {
                    "description": "Any JSON value; numbers are 64-bit integers or doubles, at most 250 levels."
                },
            },
        },
        "Queued": _object(status={"const": "queued"}, eventId=event_id),
        "QueuedBatch": _object(status={"const": "queued"}, eventIds={"type": "array", "items": event_id}),
        "State": _object(status=text),
        "Error": {
            "type": "object",
            "required": ["status", "reason"],
            "properties": {
                "status": {"const": "error"},
                "reason": text,
                "index": {"type": "integer", "description": "In a batch: the first event at fault, from 0."},
            },
        },
        "NotAcknowledged": {
            "type": "object",
            "required": ["status", "reason"],
            "properties": {
                "status": {"const": "error"},
                "reason": text,
                "acknowledged": {
                    "type": "array",
                    "items": event_id,
                    "description": "For a batch: the events that the brokers have.",
                },
            },
        },
    }


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _response(description: str, schema: dict[str, Any], headers: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"description": description, "content": _json(schema), **({"headers": headers} if headers else {})}
