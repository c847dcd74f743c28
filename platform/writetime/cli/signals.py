"""How services are stopped."""

import signal
import threading


def stopped_by_signal() -> threading.Event:
    """Return an event that SIGTERM or Ctrl-C sets."""
    stop = threading.Event()
    # SIGTERM comes last: a program that handles it is ready for both.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: stop.set())
    return stop
