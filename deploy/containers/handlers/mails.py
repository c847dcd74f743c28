"""An example of a handler, for `writetime work --queue mails --handler mails:send`."""

from typing import Any

from writetime.workqueue import Item


def send(item: Item) -> dict[str, Any]:
    """Return what is stored as the item's result."""
    return {"sent_to": item.payload["to"]}
