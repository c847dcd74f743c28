"""How services are stopped."""

import _thread
import signal
import threading


def stopped_by_signal() -> threading.Event:
    """Return an event that SIGTERM or Ctrl-C sets."""
    stop = threading.Event()

    def request(*_: object) -> None:
        # The handler may interrupt a wait for the event, which holds the event's lock. If it set the event itself, it
        # would wait for that lock forever. `threading.Thread` has such a lock, too.
        _thread.start_new_thread(stop.set, ())

    # SIGTERM is set last, so a program that handles SIGTERM handles both.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, request)
    return stop
