"""How services are stopped."""

import _thread
import signal
import threading
from collections.abc import Callable
from types import FrameType


def stopped_by_signal() -> threading.Event:
    """Return an event that SIGTERM, Ctrl-C, or the end of the terminal (SIGHUP) sets."""
    stop = threading.Event()

    def request(*_: object) -> None:
        # The handler may interrupt a wait for the event, which holds the event's lock. If it set the event itself, it
        # would wait for that lock forever. `threading.Thread` has such a lock, too.
        _thread.start_new_thread(stop.set, ())

    handle_hangup(request)
    # SIGTERM is set last, so a program that handles SIGTERM handles all.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, request)
    return stop


def handle_hangup(handler: Callable[[int, FrameType | None], object]) -> None:
    """Call a function at SIGHUP, unless the program ignores it: `nohup` lets a program outlive its terminal."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, handler)
