"""The demo's batches: the enriched flights from the work queue, as batches of a replay queue, in time order.

A flight's place in that order is its `rank`, from 1. A batch's sequence is the rank of its last flight. So it shows up
to which flight the queue is complete, and a publisher that runs again, or with more flights, continues there.
"""

from dataclasses import dataclass

import orjson

from demo import enrichment
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.replay import Publisher

QUEUE = "flights"
PRODUCER = "enrichment"
BATCH_FLIGHTS = 500


@dataclass(frozen=True)
class Published:
    """The result of `publish`: the flights and batches that it published, the flights that the queue now holds over all
    runs, and the flights that wait because an earlier one is not enriched yet.
    """

    flights: int
    batches: int
    total: int
    waiting: int


def publish(settings: Settings, since_millis: int = 0) -> Published:
    """Publish the enriched flights that the queue does not hold yet, up to the first one that is not enriched.

    Run only one at a time. If two run at once, one may end with an error.

    Args:
        settings: the settings of the installation.
        since_millis: take results of items that were enqueued since this time of the database.

    Raises:
        WritetimeError: a result of the work queue is not a flight, or the replay queue rejects a batch.
    """
    with Publisher(settings, QUEUE) as publisher:
        before = last = publisher.last_sequence(PRODUCER) or 0
        found = {_rank(result): result for result in enrichment.results(settings, since_millis)}
        while last + 1 in found:
            last += 1
        firsts = range(before + 1, last + 1, BATCH_FLIGHTS)
        for first in firsts:
            ranks = range(first, min(first + BATCH_FLIGHTS, last + 1))
            items = [found[rank].encode() for rank in ranks]
            publisher.publish(items, producer=PRODUCER, sequence=ranks[-1])
    return Published(last - before, len(firsts), last, sum(rank > last for rank in found))


def _rank(result: str) -> int:
    try:
        return orjson.loads(result)["rank"]
    except (ValueError, TypeError, KeyError):
        raise WritetimeError(
            f"work queue {enrichment.QUEUE}: a result is not an enriched flight ({result[:80]}); it may be of an "
            "earlier version: start with an empty database, or set since_millis"
        ) from None
