"""Tells an outage, which is waited for, from an error of a table or a message, which does not pass by itself."""

import errno
import re

from writetime.core.errors import Transient

# Of disks, networks and other processes. A file that is not there, or is not ours to read, is none of these.
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
# deltalake's errors of files are an OSError without a number; their text has it.
_NUMBER = re.compile(r"\(os error (\d+)\)")


def is_outage(error: BaseException) -> bool:
    """Return whether an error is that of a server, network or disk that is not available or is full just now."""
    if isinstance(error, Transient | TimeoutError | ConnectionError):
        return True
    if not isinstance(error, OSError):
        return False
    found = _NUMBER.search(str(error))
    number = error.errno if found is None else int(found[1])
    return number in _OUTAGES
