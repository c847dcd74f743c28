"""Distinguishes an outage, for whose end callers wait, from a lasting error of a table or a message."""

import errno
import re

from writetime.core.errors import Transient, WritetimeError, plain_text

# Errors of disks, networks and other processes. A missing file, or one without permission, is not an outage.
_OUTAGES = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.ENXIO,
        errno.ENODEV,
        errno.ESTALE,
        errno.ENOTCONN,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.EHOSTDOWN,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.ETIMEDOUT,
        errno.EMFILE,
        errno.ENFILE,
        errno.EAGAIN,
    }
)
# The errors of delta-rs and obstore have the error number only in their text.
_NUMBER = re.compile(r"\(os error (\d+)\)")
# Their errors of a store that did not answer, or whose status is about the request, the key or the rights.
_STORE = re.compile(r"\bGeneric \w+ error\b")
_STATUS = re.compile(r"status code: (\d{3})\b")
_UNANSWERED = re.compile(
    r"error sending request|timed out|dns error|request or response body error|error decoding response body"
)
# No certificate becomes valid by itself.
_LASTING = "invalid peer certificate"
# HTTP: a request took too long, or there were too many; and errors of the server.
_STATUSES = {408, 429, *range(500, 600)}


def is_outage(error: BaseException) -> bool:
    """Return whether an error shows that a server, network or disk is unavailable or full at the moment."""
    if isinstance(error, Transient | TimeoutError | ConnectionError):
        return True
    return isinstance(error, OSError) and (error.errno in _OUTAGES or _names_outage(plain_text(error)))


def kind_of(error: BaseException) -> type[WritetimeError]:
    """Return the class of the exception that reports an error of a disk or an object store, whatever its own class."""
    return Transient if is_outage(error) or _names_outage(plain_text(error)) else WritetimeError


def _names_outage(text: str) -> bool:
    number = _NUMBER.search(text)
    if number is not None and int(number[1]) in _OUTAGES:
        return True
    if not _STORE.search(text) or _LASTING in text:
        return False
    status = _STATUS.search(text)
    return bool(_UNANSWERED.search(text)) if status is None else int(status[1]) in _STATUSES
