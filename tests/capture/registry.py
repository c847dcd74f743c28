"""A schema registry of its own: Apicurio, by the REST API of Confluent's that it has."""

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

from writetime.servers import jars
from writetime.servers.java import java
from writetime.servers.process import EmbeddedServer, free_port


class RegistryServer(EmbeddedServer):
    """Keeps schemas in memory."""

    name = "registry"

    def __init__(self, home: Path) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"
        super().__init__(home, {"port": self._port}, 120)

    def command(self) -> list[str]:
        """Unpack the server."""
        (archive,) = jars.fetch("registry")
        shutil.unpack_archive(archive, self.folder, "gztar")
        (runner,) = self.folder.glob("*-runner.jar")
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dquarkus.http.host=127.0.0.1"]
        return [str(java()), *options, f"-Dquarkus.http.port={self._port}", "-jar", str(runner)]

    def ready(self) -> bool:
        """Return whether it answers."""
        try:
            return self.ask("GET", "/subjects") is not None
        except OSError:
            return False

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """Return what it answers."""
        body = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
