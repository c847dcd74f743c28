"""Replayable pub/sub: batches in the database, numbered 1, 2, 3, ..., never changed, read again at any time.

with Publisher(settings, "flights") as publisher:
    publisher.publish([b"one", b"two"], producer="loader", sequence=7)
with Subscriber(settings, "flights", "billing") as subscriber:
    subscriber.run(handle)
"""

from writetime.replay.batch_reading import check, extent, replay, sealed
from writetime.replay.batches import Batch
from writetime.replay.cursors import advance, forget, lag, rebuild, seek
from writetime.replay.publisher import Publisher
from writetime.replay.retention import trim
from writetime.replay.subscriber import Effects, Subscriber

__all__ = [
    "Batch",
    "Effects",
    "Publisher",
    "Subscriber",
    "advance",
    "check",
    "extent",
    "forget",
    "lag",
    "rebuild",
    "replay",
    "sealed",
    "seek",
    "trim",
]
