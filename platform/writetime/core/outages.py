"""Distinguishes an outage, which callers wait for, from a lasting error of a table or a message."""

import errno
import re

from writetime.core.errors import Transient

# Errors of disks, networks and other processes. A missing file, or one without permission, is none of these.
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
# deltalake's file errors are an OSError without a number; their text has it.
_NUMBER = re.compile(r"\(os error (\d+)\)")


def is_outage(error: BaseException) -> bool:
    """Return whether an error shows that a server, network or disk is unavailable or full at the moment."""
    if isinstance(error, Transient | TimeoutError | ConnectionError):
        return True
    if not isinstance(error, OSError):
        return False
    found = _NUMBER.search(str(error))
    number = error.errno if found is None else int(found[1])
    return number in _OUTAGES
