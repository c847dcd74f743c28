"""The wait before a move to another cluster ends: until it has all writes up to an instant."""

import time
from collections.abc import Callable
from contextlib import suppress

from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.core.instants import instant_text
from writetime.delta.bucketed_table import Conflict
from writetime.lake.replica_positions import ReplicationPosition
from writetime.lake.table import open_table
from writetime.landing.following import LandedTables
from writetime.replication.replicating import replicator

_PAUSE_SECONDS = 1.0
# Landing commits a watermark that has moved by a third of this.
_STALE_SECONDS = 0.001


def wait_until_complete(
    settings: Settings,
    name: str,
    cluster: str,
    instant: int,
    *,
    wait_seconds: float,
    progress: Callable[[int], None],
) -> ReplicationPosition:
    """Land and replicate a table until the cluster has all writes up to an instant (microseconds); return the position.
    Other programs may do the same meanwhile. `progress` gets the instant that is reached, at each attempt.

    Raises:
        WritetimeError: landing or the replication fails, or the instant is not reached in this time.
    """
    # Otherwise landing commits the watermark of a table without changes every five minutes.
    capture = settings.capture.model_copy(update={"stale_seconds": _STALE_SECONDS})
    landed = LandedTables(settings.model_copy(update={"capture": capture}), [name])
    table, deadline = open_table(settings, name), time.monotonic() + wait_seconds
    with replicator(settings, table, cluster) as opened:
        while True:
            with suppress(Conflict, Transient):
                for _, outcome in landed.land_once():
                    if isinstance(outcome, Exception):
                        raise outcome
                opened.replicate(table)
            position = opened.position
            reached = 0 if position is None or position.loaded is not None else position.complete_until
            if position is not None and reached >= instant:
                return position
            progress(reached)
            if time.monotonic() > deadline:
                at = f"all writes up to {instant_text(reached)} only" if reached else "no complete copy yet"
                raise WritetimeError(
                    f"{cluster} has {at}: see `writetime status` for agents that are behind, and run this again"
                )
            time.sleep(_PAUSE_SECONDS)
