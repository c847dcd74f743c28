"""Runs a program as a container with a read-only root and no capabilities does: python -m tests.support.read_only
FOLDER... -- COMMAND...

The program can write only below the given folders, and the superuser has no more rights than any user. Linux enforces
both for the program and its children, by Landlock and by the bounding set of capabilities. Source: `landlock(7)`,
`prctl(2)` and `linux/landlock.h`. The numbers of the system calls are the same on x86-64 and AArch64.
"""

import ctypes
import os
import struct
import sys

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_VERSION, _PATH_BENEATH = 1, 1
_LAST_CAPABILITY = 40
# WRITE_FILE; REMOVE_DIR to MAKE_SYM; since ABI 2 REFER, since ABI 3 TRUNCATE.
_WRITES = (1 << 1) | sum(1 << bit for bit in range(4, 13)) | (1 << 13) | (1 << 14)
_OF_FILES = (1 << 1) | (1 << 14)
_LEAST_ABI = 3

_libc = ctypes.CDLL(None, use_errno=True)


def is_possible() -> bool:
    """Return whether this system can do it: Linux 6.2 or later, with Landlock."""
    return sys.platform == "linux" and _libc.syscall(_CREATE_RULESET, None, 0, _VERSION) >= _LEAST_ABI


def main() -> None:
    """Restrict this process, and become the command."""
    split = sys.argv.index("--")
    _drop_capabilities()
    # Every container has /dev of its own, with /dev/null and /dev/shm.
    _write_below([*sys.argv[1:split], "/dev"])
    os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])


def _drop_capabilities() -> None:
    if os.geteuid() == 0:
        for capability in range(_LAST_CAPABILITY + 1):
            _check(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0))


def _write_below(folders: list[str]) -> None:
    ruleset = _check(_libc.syscall(_CREATE_RULESET, struct.pack("=Q", _WRITES), 8, 0))
    for folder in folders:
        opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        allowed = _WRITES if os.path.isdir(folder) else _OF_FILES
        _check(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, opened), 0))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(_libc.syscall(_RESTRICT_SELF, ruleset, 0))


def _check(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


if __name__ == "__main__":
    main()
