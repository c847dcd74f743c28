"""How services are stopped."""

import _thread
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

# A signal that comes again within this time is the same request: a supervisor may send it to each process of a group,
# and a parent to its children, too.
_SAME_REQUEST_SECONDS = 0.5
# SIGTERM is set last, so a program that handles SIGTERM handles all.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stopped_by_signal() -> threading.Event:
    """Return an event that SIGTERM, Ctrl-C, or the end of the terminal (SIGHUP) sets. SIGTERM or Ctrl-C once more ends
    the process at once.
    """
    stop = threading.Event()

    def request(*_: object) -> None:
        # The handler may interrupt a wait for the event, which holds the event's lock. If it set the event itself, it
        # would wait for that lock forever. `threading.Thread` has such a lock, too.
        _thread.start_new_thread(stop.set, ())

    reading, writing = socket.socketpair()
    writing.setblocking(False)
    # While the main thread is in a function of a library, Python calls no handler of a signal. But it writes the
    # signal's number here at once.
    signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(reading, writing, stop), name="signals", daemon=True).start()
    handle_hangup(request)
    for number in _SIGNALS:
        signal.signal(number, request)
    return stop


def handle_hangup(handler: Callable[[int, FrameType | None], object]) -> None:
    """Call a function at SIGHUP, unless the program ignores it: `nohup` lets a program outlive its terminal."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, handler)


def _listen(reading: socket.socket, writing: socket.socket, stop: threading.Event) -> None:
    """Handle signals as they come. `writing` must stay open as long as this runs."""
    asked: dict[int, float] = {}
    while received := reading.recv(1):
        number, now = received[0], time.monotonic()
        if number in (*_SIGNALS, signal.SIGHUP):
            stop.set()
        if number in _SIGNALS and now - asked.setdefault(number, now) > _SAME_REQUEST_SECONDS:
            os._exit(128 + number)
    writing.close()
