"""An object store that speaks S3's protocol: Adobe's S3Mock, which keeps objects on disk.

Its conditional writes are not atomic (of six at once for one key, more than one succeeds in two of three tries), so it
shows nothing about writers that meet.
"""

import urllib.request
from pathlib import Path

from writetime.servers import jars
from writetime.servers.java import java
from writetime.servers.process import EmbeddedServer, free_port

BUCKET = "lake"


class ObjectStore(EmbeddedServer):
    """One store with one bucket."""

    name = "s3"

    def __init__(self, home: Path) -> None:
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        super().__init__(home, {"port": self._port}, 180)

    @property
    def options(self) -> dict[str, str]:
        """What a lake needs to reach it, as `lake.storage_options`."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
        }

    def command(self) -> list[str]:
        """Return the command line."""
        (jar,) = jars.fetch("s3")
        store = "com.adobe.testing.s3mock.store"
        properties = {
            f"{store}.root": self.folder / "objects",
            f"{store}.initialBuckets": BUCKET,
            "com.adobe.testing.s3mock.httpPort": self._port,
            "server.port": 0,
            "server.address": "127.0.0.1",
        }
        (self.folder / "objects").mkdir(exist_ok=True)
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        return [str(java()), *options, *(f"-D{k}={v}" for k, v in properties.items()), "-jar", str(jar)]

    def ready(self) -> bool:
        """Return whether it lists its buckets."""
        try:
            with urllib.request.urlopen(self.endpoint, timeout=1) as answer:
                return answer.status == 200
        except OSError:
            return False
