"""The time from which the changes of a source count, after TRUNCATE, or after DROP and CREATE of the same name."""

from dataclasses import dataclass

LATEST = (1 << 63) - 1
"""A time after all others."""


@dataclass(frozen=True)
class Truncation:
    """The database's record of the last TRUNCATE of a table: the time (microseconds), and the position in the commit
    log of the node (the id of a segment and an offset) from which writes count. ScyllaDB's record has no position.
    """

    at: int
    segment: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class Start:
    """The start from which the changes of one source count (times in microseconds).

    Changes captured before `since` do not count. After a truncation, only later snapshots count: `snapshot_at` is the
    time of the source's newest snapshot. `of_log`: the source is the CDC log of a ScyllaDB table.
    """

    since: int = 0
    truncation: Truncation | None = None
    snapshot_at: int = 0
    of_log: bool = False
