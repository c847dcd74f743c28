"""A server between a client and ZooKeeper that can pause, as ZooKeeper does while its machine is suspended."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pausable(server: str) -> Iterator[tuple[str, threading.Event]]:
    """Yield an address, and an event: while it is not set, connections are accepted, and nothing passes."""
    host, _, port = server.partition(":")
    runs = threading.Event()
    runs.set()
    opened: list[socket.socket] = []

    def copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                runs.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
                behind = socket.create_connection((host, int(port)))
            except OSError:
                return
            opened.extend((client, behind))
            for pair in ((client, behind), (behind, client)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", runs
        finally:
            runs.set()
            listener.shutdown(socket.SHUT_RDWR)
            for each in opened:
                each.close()
