"""Apache ZooKeeper on loopback: one standalone server."""

import os
import socket

from writetime.core.config import Settings
from writetime.runtime import jars
from writetime.runtime.java import java
from writetime.servers.process import EmbeddedServer, port_of
from writetime.servers.properties import logback_option, properties_text


class ZooKeeperServer(EmbeddedServer):
    """One ZooKeeper server."""

    name = "zookeeper"

    def __init__(self, settings: Settings) -> None:
        self._port = port_of(settings.zookeeper.hosts, "zookeeper.hosts")
        embedded = settings.embedded
        super().__init__(embedded.home, {"zookeeper.hosts": self._port}, embedded.start_timeout_seconds)

    def command(self) -> list[str]:
        """Write `zoo.cfg` and return the command line of the server."""
        config = self.folder / "zoo.cfg"
        properties = {
            "dataDir": self.folder / "data",
            "clientPort": self._port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": 1000,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,srvr,mntr",
        }
        config.write_text(properties_text(properties), "ascii")
        class_path = os.pathsep.join(map(str, jars.fetch("zookeeper")))
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        options = ["-XX:+UseSerialGC", "-Xmx128m", logback_option(self.folder)]
        return [str(java()), *options, "-cp", class_path, main, str(config)]

    def fault(self) -> str | None:
        """Return why the server does not answer `ruok`; None if it does."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as s:
                s.sendall(b"ruok")
                answer = s.recv(4)
        except OSError as e:
            return f"127.0.0.1:{self._port}: {e}"
        return None if answer == b"imok" else f"it answers {answer!r} to ruok"
