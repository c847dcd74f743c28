"""Separate schema registries: Apicurio, with Confluent's REST API; and one that requires a login."""

import base64
import json
import shutil
import tempfile
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from writetime.runtime import jars
from writetime.runtime.java import java
from writetime.servers.process import EmbeddedServer, free_port


class RegistryServer(EmbeddedServer):
    """Keeps schemas in memory."""

    name = "registry"

    def __init__(self, home: Path) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"
        super().__init__(home, {"port": self._port}, 120)

    def command(self) -> list[str]:
        """Run the server from where it was unpacked."""
        (runner,) = _unpacked().glob("*-runner.jar")
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dquarkus.http.host=127.0.0.1"]
        return [str(java()), *options, f"-Dquarkus.http.port={self._port}", "-jar", str(runner)]

    def fault(self) -> str | None:
        """Return why it does not answer; None if it does."""
        try:
            self.ask("GET", "/subjects")
        except OSError as e:
            return str(e)
        return None

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """Return its answer."""
        body = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def _unpacked() -> Path:
    """Return the folder of the server, which is unpacked once per machine, in the folder of the jars."""
    (archive,) = jars.fetch("registry")
    folder = jars.cache_folder().parent / "registry" / archive.name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            shutil.unpack_archive(archive, Path(made) / "all", "gztar")
            (Path(made) / "all").rename(folder)
    return folder


@contextmanager
def with_login(url: str, username: str, password: str) -> Iterator[tuple[str, Counter[int]]]:
    """A server before a registry that admits clients with a login (RFC 7617); its address, and its answers."""
    wanted = f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"
    answers: Counter[int] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            status, content = 401, b'{"error_code": 401, "message": "who are you?"}'
            if self.headers["Authorization"] == wanted:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0)) or None
                headers = {"Content-Type": self.headers["Content-Type"] or "application/json"}
                request = urllib.request.Request(url + self.path, body, headers, method=self.command)
                try:
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        status, content = answer.status, answer.read()
                except urllib.error.HTTPError as e:
                    status, content = e.code, e.read()
            answers[status] += 1
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _pass_on

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", answers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
