"""How services are stopped."""

import _thread
import signal
import threading


def stopped_by_signal() -> threading.Event:
    """Return an event that SIGTERM or Ctrl-C sets."""
    stop = threading.Event()

    def request(*_: object) -> None:
        # The handler may interrupt a wait for the event that holds the event's lock. If it set the event itself, it
        # would wait for that lock for ever. `threading.Thread` has a lock of that kind, too.
        _thread.start_new_thread(stop.set, ())

    # SIGTERM comes last: a program that handles it is ready for both.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, request)
    return stop
