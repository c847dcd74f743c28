"""Times as microseconds since 1970, like write times; as ISO 8601, as users write them; and in UUIDs."""

from datetime import UTC, datetime, timedelta

import numpy as np

from writetime.core.errors import WritetimeError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# 1970-01-01 in the time of version 1 UUIDs, which counts 100 ns since 1582-10-15.
UUID_EPOCH = 0x01B21DD213814000


def parse_time(text: str) -> datetime | None:
    """Return the time of a text in ISO 8601, in UTC if it names no zone; None if it is no such text."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def parse_instant(text: str) -> int:
    """Parse a time: ISO 8601 (UTC if it names no zone), or microseconds since 1970. Raises WritetimeError: it is
    neither.
    """
    if text.lstrip("-").isdigit():
        return int(text)
    if (time := parse_time(text)) is None:
        raise WritetimeError(f"{text!r} is neither a time such as 2025-06-01T12:00:00Z nor microseconds")
    return (time - _EPOCH) // timedelta(microseconds=1)


def instant_text(micros: int) -> str:
    """Return a time in ISO 8601, or the microseconds if they are beyond the year 9999."""
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return f"{micros} microseconds since 1970"


def uuid_micros(uuids: np.ndarray) -> np.ndarray:
    """Return the times of UUIDs, given as rows of 16 bytes, in microseconds since 1970. Their variant is not checked,
    because older releases did not set it.
    """
    parts = uuids[:, :8].astype(np.int64)
    ticks = np.zeros(len(uuids), np.int64)
    for i in (6, 7, 4, 5, 0, 1, 2, 3):
        ticks = ticks << 8 | (parts[:, i] & 0x0F if i == 6 else parts[:, i])
    return (ticks - UUID_EPOCH) // 10
