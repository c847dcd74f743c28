"""Services of the compose file as processes that can write to one folder only, without the rights of root."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from numba.core.caching import UserProvidedCacheLocator

from tests.deploy.files import CONTAINERS, ROOT, compose
from tests.support.waiting import wait_for
from writetime.runtime.jars import cache_folder

# Whose functions containers compile all the same: the agent writes them into its folder.
_LEFT_TO_COMPILE = "frames"


def keep_compiled(home: Path) -> None:
    """Copy numba's functions of the tests to the folder that containers use, as if this were their second start."""
    for code in (ROOT / "platform").rglob("__pycache__/*.nb[ic]"):
        if not code.name.startswith(_LEFT_TO_COMPILE):
            own = UserProvidedCacheLocator.get_suitable_cache_subpath(str(code.parents[1] / "any.py"))
            (home / "numba" / own).mkdir(parents=True, exist_ok=True)
            shutil.copy(code, home / "numba" / own)


def environment(home: Path, **own: str) -> dict[str, str]:
    """Return the environment of a container whose folders are in `home`."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("WRITETIME_", "DAGSTER_"))},
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(home / "numba"),
        "WRITETIME_CONFIG": str(CONTAINERS / "writetime.toml"),
        # The images have Cassandra's jars, or its nodetool.
        "WRITETIME_CACHE": str(cache_folder().parent),
        **own,
    }


class Container:
    """A service that runs. Texts of its command, its environment and its probe, such as ports, are replaced by those of
    the test.
    """

    def __init__(self, name: str, home: Path, own: Mapping[str, str], replaced: Mapping[str, str]) -> None:
        service = compose()["services"][name]
        self.log = home.parent / f"{name}.log"
        self._replaced = replaced
        self._environment = {name: self._fitted(value) for name, value in service.get("environment", {}).items()}
        self._environment = dict(own) | self._environment
        self._probe = self._command(service["healthcheck"]["test"][1:])
        arguments = service.get("command", ["agent"])
        is_dagster = service["image"].startswith("writetime-dagster")
        command = self._command(arguments if is_dagster else ["python", "-m", "writetime", *arguments])
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.read_only", str(home), "--", *command],
                cwd=home,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def _command(self, parts: list[str]) -> list[str]:
        """Return a command line with the programs of this environment."""
        program, *arguments = parts
        return [str(Path(sys.executable).parent / program), *map(self._fitted, arguments)]

    def _fitted(self, text: str) -> str:
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        return text

    def is_healthy(self) -> bool:
        """Run the probe."""
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        done = subprocess.run(self._probe, capture_output=True, check=False, timeout=180, env=self._environment)
        return done.returncode == 0

    def stop(self) -> int:
        """End it as Docker and Kubernetes do; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(180)

    def assert_no_fault(self) -> None:
        """Look for faults in its log."""
        log = self.log.read_text()
        for fault in ("Traceback", "Permission denied", "Read-only"):
            assert fault not in log, log[-3000:]


@contextmanager
def running(started: Iterator[tuple[str, Container]]) -> Iterator[dict[str, Container]]:
    """Start containers, each when those before it are healthy, and kill them at the end."""
    found: dict[str, Container] = {}
    with ExitStack() as until_killed:
        for name, container in started:
            found[name] = container
            until_killed.callback(container.process.wait)
            until_killed.callback(container.process.kill)
        for container in found.values():
            wait_for(container.is_healthy)
        yield found
