"""The OpenAPI document of the HTTP ingress.

`openapi.json` in the folder of this module is the document, with `{names}` in place of the configured limits.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from writetime.core.config import Settings
from writetime.core.setting_types import YEAR_SECONDS
from writetime.http.bodies import MAX_PARTS
from writetime.http.protocol import MAX_HEADER_BYTES, MAX_HEADERS
from writetime.http.queue_controls import MAX_WAIT_SECONDS
from writetime.workqueue.enqueue import MAX_DELAY_SECONDS, MAX_PAYLOAD_LEVELS

# Load balancers and supervisors read the first two without a token. The page of queues has no data, and asks for one.
OPEN_PATHS = frozenset({"/health", "/ready", "/queues"})
_FILE = Path(__file__).with_name("openapi.json")


def document(settings: Settings, max_batch_events: int) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document with the configured limits."""
    ingest = settings.ingest
    limits = {
        "version": version("writetime"),
        "ack_timeout_seconds": ingest.ack_timeout_seconds,
        "max_batch_events": max_batch_events,
        "max_body_bytes": max(ingest.max_batch_bytes, ingest.max_event_bytes),
        "max_delay_seconds": MAX_DELAY_SECONDS,
        "max_event_bytes": ingest.max_event_bytes,
        "max_header_bytes": MAX_HEADER_BYTES,
        "max_headers": MAX_HEADERS,
        "max_parts": MAX_PARTS,
        "max_payload_bytes": settings.workqueue.max_payload_bytes,
        "max_payload_levels": MAX_PAYLOAD_LEVELS,
        "max_time_limit_seconds": YEAR_SECONDS,
        "max_wait_seconds": MAX_WAIT_SECONDS,
        "request_seconds": ingest.request_seconds,
    }
    found = _filled(json.loads(_FILE.read_bytes()), limits)
    if ingest.tokens:
        for path, operations in found["paths"].items():
            if path not in OPEN_PATHS:
                for operation in operations.values():
                    operation["security"] = [{"token": []}]
                    operation["responses"]["401"] = {"$ref": "#/components/responses/Unauthorized"}
    return found


def _filled(part: Any, limits: Mapping[str, Any]) -> Any:
    """Replace the names in a part of the document by their limits. A string that is one name becomes the number."""
    match part:
        case dict():
            return {name: _filled(value, limits) for name, value in part.items()}
        case list():
            return [_filled(value, limits) for value in part]
        case str():
            return limits[part[1:-1]] if part[1:-1] in limits else part.format_map(limits)
    return part
