"""Starts a server process on this machine, probes it until it answers, finds it again by its pid file, and stops it.

A server outlives the command that starts it, and any later command finds it. A supervisor such as supervisord would be
a further process to start, find and stop, and not every machine has systemd or Docker.
"""

import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil

from writetime.core.errors import WritetimeError
from writetime.core.private_folders import restrict_home
from writetime.core.waiting import wait_until
from writetime.runtime.java import java_home

STOP_SECONDS = 30.0
# The kernel takes a moment to release the ports of a large process that was killed.
PORT_RELEASE_SECONDS = 5.0
_PORTS = range(20_000, 32_768)
_PER_PROCESS = 97
_tried = itertools.count()


class ServerFolder:
    """The folder of a server, by which any program finds it again: data, `server.pid` and `server.log`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @property
    def log_file(self) -> Path:
        """The file of the server's output; kept across restarts."""
        return self.folder / "server.log"

    def pid(self) -> int | None:
        """Return the process id if the server of this folder is running."""
        try:
            recorded, identity = self._pid_file.read_text().split()
            pid = int(recorded)
        except (FileNotFoundError, ValueError):
            return None
        # The same number may belong to another process by now.
        return pid if _identity(pid) == identity else None

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> bool:
        """Stop the server (SIGKILL to simulate a crash); return False if it was not running. A server that was killed
        leaves its pid file, as after a crash. Raises WritetimeError: the process does not end.
        """
        pid = self.pid()
        if pid is None:
            return False
        if self._ends_by(pid, sig):
            if sig != signal.SIGKILL:
                self._pid_file.unlink(missing_ok=True)
        elif not self._ends_by(pid, signal.SIGKILL):
            raise WritetimeError(f"{self.folder.name}: process {pid} does not end, although it was killed")
        return True

    def _ends_by(self, pid: int, sig: signal.Signals) -> bool:
        def has_ended() -> bool:
            # A child of this process, which would otherwise stay in the list of processes.
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            return self.pid() is None

        with suppress(ProcessLookupError):
            os.kill(pid, sig)
        return wait_until(has_ended, STOP_SECONDS, 0.02)

    @property
    def _pid_file(self) -> Path:
        return self.folder / "server.pid"


class EmbeddedServer(ServerFolder, ABC):
    """One server with its own folder below `home`, which also has its configuration."""

    name: str
    # The loopback address of the machine that it listens at.
    address = "127.0.0.1"

    def __init__(self, home: Path, ports: dict[str, int], start_timeout_seconds: float) -> None:
        super().__init__(home / self.name)
        self.ports = ports
        self._start_timeout_seconds = start_timeout_seconds

    @abstractmethod
    def command(self) -> list[str]:
        """Write the configuration and return the command line that runs the server in the foreground."""

    @abstractmethod
    def fault(self) -> str | None:
        """Return why the server does not answer a request of its own protocol; None if it does."""

    def start(self) -> bool:
        """Start the server and wait until it is ready; return False if it was already running. Raises WritetimeError: a
        port is in use, or the server ends or is not ready in time (with the end of its log).
        """
        launched = self.launch()
        self.wait_ready()
        return launched

    def must_start(self) -> bool:
        """Return whether the server does not run yet, and could listen at its ports. Raises WritetimeError: another
        program has one of its ports.
        """
        with self._locked():
            return self._must_start()

    def launch(self) -> bool:
        """Start the process without waiting for it; return False if it was already running."""
        with self._locked():
            if not self._must_start():
                return False
            self._launch()
            return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other programs that start the servers: two must not both find that a server is not running."""
        restrict_home(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "launch.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _must_start(self) -> bool:
        if self.pid() is not None:
            return False
        for setting, port in self.ports.items():
            self._require_free(port, setting)
        return True

    def _launch(self) -> None:
        command = self.command()
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                env=java_environment(),
            )
        self._pid_file.write_text(f"{process.pid} {_identity(process.pid)}")

    def wait_ready(self) -> None:
        """Wait until the server answers. Raises WritetimeError: it ended, or did not answer in time, with the reason of
        the last try.
        """
        deadline = time.monotonic() + self._start_timeout_seconds
        while (fault := self.fault()) is not None:
            if self.pid() is None:
                raise WritetimeError(f"{self.name} ended while starting; its log {self.log_file} ends:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise WritetimeError(
                    f"{self.name} was not ready after {self._start_timeout_seconds:g} s ({fault}); "
                    f"see {self.log_file}, or raise embedded.start_timeout_seconds"
                )
            time.sleep(0.1)

    def _require_free(self, port: int, setting: str) -> None:
        # A server that did not stop by itself has left its pid file. Another program does not release the port.
        was_killed = self._pid_file.exists()
        if not wait_until(lambda: _is_free(self.address, port), PORT_RELEASE_SECONDS if was_killed else 0):
            raise WritetimeError(
                f"{self.name}: port {port} is in use by another program; stop it (if `writetime up` has started it in "
                f"another folder: with `writetime down` there) or set another {setting}"
            )

    def _tail(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-8:])


def java_environment() -> dict[str, str]:
    """Return the environment of a server's programs. The locale C would let Java open no file whose path has letters
    beyond ASCII.
    """
    return {**os.environ, "JAVA_HOME": str(java_home()), "LC_ALL": "C.UTF-8"}


def port_of(address: str, setting: str) -> int:
    """Return the port of `host:port`. Raises WritetimeError: the address has none."""
    port = address.rsplit(":", 1)[-1]
    if ":" not in address or not port.isdigit():
        raise WritetimeError(
            f"{setting} is {address!r}; an embedded server needs one host:port, such as 127.0.0.1:19092"
        )
    return int(port)


def port_answers(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether something accepts connections at a port of the loopback interface."""
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex((address, port)) == 0


def free_port(ports: range = _PORTS) -> int:
    """Return a port of the loopback interface that is free now, and that no other process has reserved here.

    A server listens on it later, and possibly again after a restart. So it is not an ephemeral port (from 32,768 on in
    Linux), and it stays reserved until this process ends.
    """
    while True:
        port = ports[(os.getpid() * _PER_PROCESS + next(_tried)) % len(ports)]
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            # Each port has a byte, which a process locks. The lock ends with the process.
            fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            return port


@cache
def _reservations() -> int:
    """Open the file in which the processes of this user lock the ports that they have reserved. It must stay open,
    because closing it would release them.
    """
    path = Path(tempfile.gettempdir()) / f"writetime-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _identity(pid: int) -> str | None:
    """Return an identity of a process that no earlier or later process with its number has; None if it has ended. It
    does not depend on the clock, which may be set while the process runs. A zombie has ended: not every container has
    an init process that reaps it.
    """
    if not sys.platform.startswith("linux"):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
        return None
    try:
        # After the name, which may have any characters: fields 3 to 52 of `proc_pid_stat(5)`.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, threads, start_ticks = fields[0], int(fields[17]), fields[19].decode()
    # A thread of a process that ends may still hold its ports.
    if state == b"Z" and threads <= 1:
        return None
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{start_ticks}"


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((address, port))
        except OSError:
            return False
        return True
