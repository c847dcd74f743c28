"""Compares this machine's clock with the one that gives the files of the lake their times.

The age of a file decides whether it is deleted. By a clock that is far ahead, new files are old, such as those that
another machine has not committed yet, or still reads.
"""

import time
import uuid
from dataclasses import dataclass

from writetime.core.errors import WritetimeError
from writetime.lake.lake_storage import Storage

VALID_SECONDS = 600.0
"""The time after which the clocks are compared again, and at once if this machine's clock was set."""

# The shortest age at which files are deleted is an hour.
_MOST_AHEAD_SECONDS = 900.0
# A clock that was set, or a machine that slept, changes the difference between the time and the monotonic one.
_STEP_SECONDS = 60.0


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
    found = _of_lakes.get(storage.root)
    if found is None or not found.is_valid():
        found = _of_lakes[storage.root] = _Compared(time.monotonic(), time.time(), _seconds_ahead(storage))
    if found.ahead <= _MOST_AHEAD_SECONDS:
        return None
    return (
        f"this machine's clock is {found.ahead / 3600:.1f} h ahead of the one that gives the lake's files their times, "
        "so nothing is deleted by its age: set it right"
    )


def require_right_clock(storage: Storage) -> None:
    """Raise a `WritetimeError` if this machine's clock is far ahead, as in `clock_fault`."""
    if fault := clock_fault(storage):
        raise WritetimeError(fault)


def _seconds_ahead(storage: Storage) -> float:
    # If the process is killed in between, a vacuum deletes the file.
    filesystem, path = storage.filesystem(), f"clock-{uuid.uuid4().hex}"
    before = time.time()
    with filesystem.open_output_stream(path):
        pass
    try:
        return before - filesystem.get_file_info(path).mtime.timestamp()
    finally:
        filesystem.delete_file(path)
