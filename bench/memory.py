"""The memory of programs."""

from pathlib import Path

import psutil


def anonymous_of(process: psutil.Process) -> float:
    """Return the memory of a program in MiB, without mapped files, because the system may drop those."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [kilobytes] = (line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(kilobytes) / 1024
