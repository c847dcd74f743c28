"""The ingress as a process."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.attack.answers import Answer, Connection
from tests.attack.calls import AUTHORIZED, framed
from tests.support.settings import write_settings
from writetime.core.config import Settings


class Ingress:
    """`writetime serve` as a process."""

    def __init__(self, settings: Settings, home: Path) -> None:
        self.port = settings.ingest.port
        self._log = home / "ingress.log"
        self._config = home / "ingress.toml"
        write_settings(settings, self._config)
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "writetime", "serve"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "WRITETIME_CONFIG": str(self._config)},
            )
        assert process.stdout is not None
        if not process.stdout.readline().startswith("listening on"):
            raise SystemExit(f"the ingress does not start: {self.log()[-2000:]}")
        return process

    def log(self) -> str:
        """Its report."""
        return self._log.read_text(errors="replace")

    def ended(self) -> int | None:
        """The exit code of the process, if it has ended by itself."""
        return self._process.poll()

    def restart(self) -> None:
        """Start it again."""
        self._process = self._start()

    def memory(self) -> int:
        """The bytes of memory that it has."""
        return psutil.Process(self._process.pid).memory_info().rss

    def metric(self, name: str) -> float:
        """Ask for a metric."""
        with Connection(self.port, 15.0) as connection:
            connection.send((framed(b"GET", b"/metrics", [AUTHORIZED], b""), 0.0))
            answer = connection.answer()
        families = text_string_to_metric_families(answer.body.decode()) if isinstance(answer, Answer) else ()
        return next(sample.value for family in families for sample in family.samples if sample.name == name)

    def stop(self) -> int:
        """Stop it as an operator does; return its exit code, or -9 if it had to be killed."""
        self._process.terminate()
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
