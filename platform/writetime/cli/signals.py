"""How services are stopped."""

import signal
import threading


def stopped_by_signal() -> threading.Event:
    """Return an event that SIGTERM or Ctrl-C sets."""
    stop = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stop.set())
    return stop
