"""Memory with closed pages after it: if compiled code reads or writes beyond a buffer, the process ends.

Use it in a separate process: `guard` replaces the functions by which readers allocate memory and map files.
"""

import ctypes
import mmap
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np

from writetime.storage import commitlog, index, plan, row_index, sstable
from writetime.storage.kernel import trie
from writetime.storage.kernel.primitives import token_at
from writetime.storage.locations import Location
from writetime.storage.segment import Section, Stretch

_LIBC = ctypes.CDLL(None, use_errno=True)
_ROOM: tuple[ModuleType, ...] = (commitlog, index, row_index, sstable, trie)
_ROOMS: tuple[ModuleType, ...] = (commitlog, plan, sstable)
_INDEXES = ("Index.db", "Partitions.db", "Rows.db")


def guarded_room(count: int, dtype: type[np.generic]) -> np.ndarray:
    """Return an array as `room` does, of which the last byte is the last of a page that another follows, which is
    closed."""
    size = count * np.dtype(dtype).itemsize
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + pages
    if _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return np.frombuffer(memory, dtype, count, pages - size)


def guarded_rooms(wanted: Sequence[tuple[int, type[np.generic]]]) -> list[np.ndarray]:
    """Return guarded arrays as `rooms` does."""
    return [guarded_room(count, dtype) for count, dtype in wanted]


def guarded_copy(data: bytes | np.ndarray) -> np.ndarray:
    """Copy bytes to the end of a page that a closed one follows."""
    found = guarded_room(len(data), np.uint8)
    found[:] = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    return found


def guard() -> None:
    """Let all memory that compiled code of `writetime.storage` reads and writes be guarded, in this process."""
    for modules, name, guarded in ((_ROOM, "room", guarded_room), (_ROOMS, "rooms", guarded_rooms)):
        for module in modules:
            assert getattr(module, name)
            setattr(module, name, guarded)
    read, stretches = Location.read, commitlog.stretches

    def read_guarded(self: Location, component: str) -> bytes:
        data = read(self, component)
        return memoryview(guarded_copy(data)) if component in _INDEXES else data  # type: ignore[return-value]

    def guarded_stretches(sections: Iterable[Section]) -> Iterator[Stretch]:
        for stretch in stretches(sections):
            yield replace(stretch, data=guarded_copy(stretch.data))

    Location.read = read_guarded  # type: ignore[method-assign]
    commitlog.stretches = guarded_stretches


@dataclass(frozen=True)
class Answer:
    """How a function ended in a separate process: the code is negative after a signal."""

    returncode: int
    stdout: str
    stderr: str


def in_a_process(function: Callable[..., None], *arguments: object, seconds: float = 300) -> Answer:
    """Run a function of these tests in a separate process.

    It is forked from one that has imported what takes a second to import.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "tests.storage.written", "writetime.sources.commitlog"])
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        process = context.Process(target=_run, args=(outputs, function, arguments))
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        assert process.exitcode is not None
        return Answer(process.exitcode, *(path.read_text() if path.exists() else "" for path in outputs))


def _run(outputs: list[Path], function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    for path, descriptor in zip(outputs, (1, 2), strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    function(*arguments)


def read_beyond() -> None:
    """Read the byte after a guarded buffer: this ends the process, unless the guard does not work."""
    guard()
    (buffer,) = sstable.rooms([(100, np.uint8)])
    token_at(buffer.ctypes.data, 100)
    token_at(buffer.ctypes.data, 101)
