"""Small disks that can be filled."""

import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(parent: Path, kib: int) -> Iterator[Path]:
    """A disk of so many KiB, or no test where none can be mounted."""
    folder = parent / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root, also that of `unshare --map-root-user --mount make test`")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes fail beyond a size, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def fill(disk: Path, *, free: int = 0) -> Path:
    """Fill a disk, except for so many bytes, and return the file that fills it."""
    filling = disk / "filling"
    with filling.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 512)
    with filling.open("r+b") as file:
        file.truncate(max(filling.stat().st_size - free, 0))
    return filling
