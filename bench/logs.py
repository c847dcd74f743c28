"""Keeps the logs of programs and clients out of the output of a benchmark."""

import logging
from pathlib import Path

_FILE = Path(".writetime/bench.log")


def log_to_file() -> None:
    """Append all logs of this process to `.writetime/bench.log`."""
    _FILE.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=_FILE, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
