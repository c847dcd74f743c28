"""Compares this machine's clock with the one that gives the files of the lake their times.

The age of a file decides whether it is deleted. By a clock that is far ahead, new files are old, such as those that
another machine has not committed yet, or still reads. By a clock that is behind, a file that is replaced now was
replaced long ago, for machines whose clocks are right. So a machine whose clock is far ahead deletes nothing, and one
whose clock is far behind uses the store's clock for all times that it writes into the lake.
"""

import logging
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass

from writetime.core.errors import WritetimeError
from writetime.delta.storage import Storage

VALID_SECONDS = 600.0
"""The time after which the clocks are compared again, and at once if this machine's clock was set."""

# The shortest age at which files are deleted is an hour.
_MOST_AHEAD_SECONDS = 900.0
# Clocks differ by less. A file's time may be that of the request, and in whole seconds.
_MOST_BEHIND_SECONDS = 60.0
# A clock that was set, or a machine that slept, changes the difference between the time and the monotonic one.
_STEP_SECONDS = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Compared:
    """When the clocks were compared, by the monotonic clock and by this machine's, and by how much it was ahead."""

    at: float
    time: float
    ahead: float

    def is_valid(self) -> bool:
        elapsed = time.monotonic() - self.at
        return elapsed <= VALID_SECONDS and abs(time.time() - self.time - elapsed) <= _STEP_SECONDS


_of_lakes: dict[str, _Compared] = {}


def clock_fault(storage: Storage) -> str | None:
    """Return why nothing may be deleted by its age, with the remedy: this machine's clock is far ahead. None if it is
    not. Once in a while, this writes an empty file into a folder of the lake, and deletes it.
    """
    ahead = _compared(storage).ahead
    if ahead <= _MOST_AHEAD_SECONDS:
        return None
    return (
        f"this machine's clock is {ahead / 3600:.1f} h ahead of the one that gives the lake's files their times, so "
        "nothing is deleted by its age: set it right"
    )


def require_right_clock(storage: Storage) -> None:
    """Raise a `WritetimeError` if this machine's clock is far ahead, as in `clock_fault`."""
    if fault := clock_fault(storage):
        raise WritetimeError(fault)


def micros_behind(storage: Storage) -> int:
    """Return by how much (microseconds) this machine's clock is behind; 0 if it is not far behind. All times that are
    written into the lake are later by this.
    """
    behind = -_compared(storage).ahead
    return round(behind * 1_000_000) if behind > _MOST_BEHIND_SECONDS else 0


def _compared(storage: Storage) -> _Compared:
    found = _of_lakes.get(storage.root)
    if found is None or not found.is_valid():
        found = _of_lakes[storage.root] = _Compared(time.monotonic(), time.time(), _seconds_ahead(storage))
        if found.ahead < -_MOST_BEHIND_SECONDS:
            _log.warning(
                "this machine's clock is %.1f h behind the one that gives the files of %s their times: set it right",
                *(-found.ahead / 3600, storage.root),
            )
    return found


def _seconds_ahead(storage: Storage) -> float:
    # If the process is killed in between, or the store refuses deletions, a vacuum deletes the file.
    filesystem, path = storage.filesystem(), f"clock-{uuid.uuid4().hex}"
    before = time.time()
    with filesystem.open_output_stream(path):
        pass
    try:
        return before - filesystem.get_file_info(path).mtime.timestamp()
    finally:
        with suppress(OSError):
            filesystem.delete_file(path)
