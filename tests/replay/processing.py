"""Processors that run until there is nothing more to do."""

from writetime.core.config import Settings
from writetime.replay import Batch, Subscriber


def done(settings: Settings, queue: str, name: str) -> list[Batch]:
    """The work of a processor until no batch is left."""
    batches: list[Batch] = []
    with Subscriber(settings, queue, name) as subscriber:
        subscriber.run(batches.append, until_idle=True)
    return batches
