"""Compares this machine's clock with the one that gives the files of the lake their times.

The age of a file decides whether it is deleted. By a clock that is far ahead, new files are old, such as those that
another machine has not committed yet, or still reads.
"""

import time
import uuid

from writetime.core.errors import WritetimeError
from writetime.lake.lake_storage import Storage

VALID_SECONDS = 600.0
"""The time after which the clocks are compared again."""

# The shortest age at which files are deleted is an hour.
_MOST_AHEAD_SECONDS = 900.0
# By lake: when the clocks were last compared, and how many seconds this machine's clock was ahead.
_compared: dict[str, tuple[float, float]] = {}


def clock_fault(storage: Storage) -> str | None:
    """Return why nothing may be deleted by its age, with the remedy: this machine's clock is far ahead. None if it is
    not. Once in a while, this writes an empty file into a folder of the lake, and deletes it.
    """
    at, ahead = _compared.get(storage.root, (0.0, 0.0))
    if not at or time.monotonic() - at > VALID_SECONDS:
        ahead = _seconds_ahead(storage)
        _compared[storage.root] = time.monotonic(), ahead
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
