"""Finds out whether a replay queue exists: it begins with its first batch, so any misspelt name is an empty queue."""

import difflib

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.replay.batches import Batches
from writetime.replay.coordination import check_name


def require_queue(settings: Settings, queue: str) -> None:
    """Return if a batch was published to a queue, or the settings name it.

    Raises:
        WritetimeError: neither, such as for a misspelt name.
    """
    named = {*settings.replay.queues, *settings.replay.keep_days}
    if check_name(queue, "queue") in named:
        return
    with connect(settings) as session:
        batches = Batches(session, settings)
        if batches.head(queue) is not None:
            return
        similar = difflib.get_close_matches(queue, named | batches.queues(), n=1)
    hint = f"did you mean {similar[0]}?" if similar else f"`writetime replay publish {queue}` does this"
    raise WritetimeError(f"no batch was ever published to queue {queue}; {hint}")
