"""Instants as people write them: microseconds since 1970, as write times are, or ISO 8601."""

from datetime import UTC, datetime, timedelta

from writetime.errors import WritetimeError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_instant(text: str) -> int:
    """Read an instant: ISO 8601 (UTC if it names no zone), or microseconds since 1970.

    Raises:
        WritetimeError: it is neither.
    """
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise WritetimeError(f"{text!r} is no time such as 2025-06-01T12:00:00Z, nor microseconds") from None
    return ((read if read.tzinfo else read.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def instant_text(micros: int) -> str:
    """Return an instant in ISO 8601, or the microseconds if they are beyond the year 9999."""
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return f"{micros} microseconds since 1970"
