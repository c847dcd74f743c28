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
# The same of pyarrow's client of S3, with its names of errors. It shows the number of an error that it has no name for.
_S3 = re.compile(r"\bAWS Error (?:UNKNOWN \(HTTP status (\d{3})\)|(\w+))")
_S3_OUTAGES = {
    "INTERNAL_FAILURE",
    "NETWORK_CONNECTION",
    "REQUEST_TIMEOUT",
    "SERVICE_UNAVAILABLE",
    "SLOW_DOWN",
    "THROTTLING",
}
# No certificate becomes valid by itself.
_LASTING = re.compile("invalid peer certificate|SSL peer certificate")
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
    if _LASTING.search(text):
        return False
    if (of_s3 := _S3.search(text)) is not None:
        return of_s3[2] in _S3_OUTAGES or int(of_s3[1] or 0) in _STATUSES
    if not _STORE.search(text):
        return False
    status = _STATUS.search(text)
    return bool(_UNANSWERED.search(text)) if status is None else int(status[1]) in _STATUSES
