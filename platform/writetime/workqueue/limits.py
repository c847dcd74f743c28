"""Rates, and their division. A limit of a queue is divided among its shards, each of which has one owner at a time."""


class Rate:
    """Limits the number of items that start per second, and spaces them evenly.

    After a pause, at most the items of one second may start at once. `now` is in seconds of any clock that does not go
    back.
    """

    def __init__(self, per_second: float | None) -> None:
        self._gap = 0.0 if per_second is None else 1 / per_second
        self._burst = max(1.0, per_second or 1.0) * self._gap
        self._next: float | None = None

    def ready_at(self, now: float) -> float:
        """Return when the next one may start."""
        if not self._gap:
            return now
        if self._next is None:
            # A new owner does not know when the last one started items: no burst.
            self._next = now
        return max(now, self._next)

    def begin(self, now: float) -> None:
        """Count one start."""
        if self._gap:
            self._next = max(self._next if self._next is not None else now, now - self._burst + self._gap) + self._gap


def part(limit: int | None, shard: int, shards: int) -> int | None:
    """Return a shard's part of a number; the parts of all shards add up to it."""
    return None if limit is None else limit // shards + (shard < limit % shards)
