"""`writetime sink` as a separate process, with its own settings file."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from writetime.core.config import Settings

_STOP_SECONDS = 60


class SinkProcess:
    """One running sink. Its output goes to `log`, which the test prints when it fails."""

    def __init__(self, settings: Settings, folder: Path, number: int) -> None:
        config = folder / "sink.toml"
        config.write_text(to_toml(settings))
        self.log = folder / f"sink-{number}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [Path(sys.executable).with_name("writetime"), "sink"],
                env={**os.environ, "WRITETIME_CONFIG": str(config)},
                stdout=log,
                stderr=log,
            )

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it as an operator does; it must drain and end well."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(_STOP_SECONDS) == 0, self.log.read_text()


def to_toml(settings: Settings) -> str:
    """Write settings as the file that the real program reads."""
    sections = settings.model_dump(mode="json", exclude_none=True)
    return "\n".join(f"{name} = {_value(values)}" for name, values in sections.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)
