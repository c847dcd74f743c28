"""Bodies of calls: read up to a limit, checked for the number of parts, then parsed."""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from writetime.core.counts import pluralize
from writetime.core.json_texts import from_json_bytes

# The event loop waits while orjson makes Python objects: for seconds with the four million arrays that fit into 8 MiB,
# for about a tenth of a second with this many arrays or named fields. Plain numbers and texts are cheap.
MAX_PARTS = 200_000
_starts_a_batch = re.compile(rb"[ \t\r\n]*\[").match


class RefusedCall(Exception):
    """The call is answered with an error."""

    def __init__(self, status: int, reason: str, **details: Any) -> None:
        super().__init__(reason)
        self.status = status
        self.body = {"status": "error", "reason": reason, **details}


class Disconnected(Exception):
    """The client disconnected before the end of its call."""


async def read(receive: Callable[[], Awaitable[MutableMapping[str, Any]]], single: int, batch: int) -> bytearray:
    """Return the body of an ASGI call; `single` and `batch` limit the bytes of one object and of an array. Raises
    RefusedCall: it is larger; Disconnected: its end did not arrive.
    """
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += message["body"]
        limit = single
        if len(body) > limit:
            if _starts_a_batch(body):
                limit = max(limit, batch)
            if len(body) > limit:
                raise RefusedCall(413, f"the body is larger than {pluralize(limit, 'byte')}")
        more = message["more_body"]
    return body


def parse(body: bytearray) -> Any:
    """Return the JSON value of a body. Raises RefusedCall: it is not JSON, or has more parts than may be parsed at
    once.
    """
    if len(body) > MAX_PARTS and sum(map(body.count, (b"[", b"{", b":"))) > MAX_PARTS:
        raise RefusedCall(
            413, f"the body has more than {MAX_PARTS} arrays, objects and fields; send it in several calls"
        )
    try:
        return from_json_bytes(body)
    except ValueError as e:
        raise RefusedCall(400, f"the body is not JSON: {e}") from None
