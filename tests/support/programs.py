"""Programs of Writetime as processes, and agents in threads."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.waiting import PATIENCE_SECONDS
from writetime.capture import scylla_agent
from writetime.capture.scylla_agent import LogPace
from writetime.core.config import Settings

# Of agents in threads: tests wait for watermarks, for the status, and for the next attempt after a fault.
PACE = LogPace(mark=0.5, pause=0.25, status=0.25)


class Program(threading.Thread):
    """A program of Writetime that is started again whenever it ends, as an operating system does."""

    def __init__(self, home: Path, name: str, *arguments: str) -> None:
        super().__init__(name=name)
        self.log = home / f"{name}.log"
        self.ends: Counter[int] = Counter()
        self._command = [sys.executable, "-m", "writetime", *arguments]
        self._environment = {**os.environ, "WRITETIME_CONFIG": str(home / "writetime.toml")}
        self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        while not self._stopping:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)
            self.ends[self._process.wait()] += 1
            time.sleep(0.2)

    def kill(self) -> None:
        """End it as a crash does, if need be after it was started again."""
        while self.is_alive() and not self._stopping and (self._process is None or self._process.poll() is not None):
            time.sleep(0.02)
        if self._process is not None:
            self._process.kill()
            # Or it would be killed again in place of the next one.
            self._process.wait()

    def end(self) -> None:
        """End it permanently, as an operator does."""
        self._stopping = True
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self.join(PATIENCE_SECONDS)

    def connections(self, port: int) -> set[tuple[int, str]]:
        """Its connections to a port: its own port, and the address of the other end."""
        if self._process is None or self._process.poll() is not None:
            return set()
        found = psutil.Process(self._process.pid).net_connections("tcp")
        return {
            (each.laddr.port, each.raddr.ip)
            for each in found
            if each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED
        }

    def tail(self) -> str:
        """The end of its output."""
        return self.log.read_text()[-3000:] if self.log.exists() else ""


@contextmanager
def agent(settings: Settings, snapshot_at: int | None = None) -> Iterator[None]:
    """An agent in a thread."""
    stop = threading.Event()
    thread = threading.Thread(target=scylla_agent.run, args=(settings, stop, snapshot_at, PACE))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
