"""A webhook that accepts alerts."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def receiving() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook with a token in its URL, and the bodies that were posted to it."""
    posted: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if self.path == "/hooks/token" else 403)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hooks/", posted
    finally:
        # The process of a failed test would wait for the thread when it ends.
        server.shutdown()
        thread.join()
        server.server_close()
